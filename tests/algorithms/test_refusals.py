"""Settings that don't fit each other, and runs that leave the finite numbers; table.py's rows are tried one by one."""

import logging
import math

import pytest
import torch
from quadratics import THREE, scalars

from archipel import (
    APFL,
    FPFC,
    L2SGD,
    SCAFFOLD,
    SGD,
    Ditto,
    DivergenceError,
    FedAvg,
    FedBABU,
    FedDRM,
    FedDyn,
    FedPer,
    FedProx,
    FedSplit,
    Local,
    PFedMac,
    PFedMe,
    ProxSkip,
    classification,
    fit,
)
from archipel.engines.setting import Setting
from archipel.learning.quadratic import Quadratic

TASK, STEP = Quadratic(), SGD(lr=0.1, steps=1, batch=None)


@pytest.mark.parametrize(
    ("make", "outside"),
    [
        (lambda value: L2SGD(TASK, STEP, p=value), (0, 1, -0.1, 1.5, math.nan)),
        (lambda value: ProxSkip(TASK, STEP, p=value), (0, -0.1, 1.5, math.nan)),  # 1 is to communicate always
        (lambda value: APFL(TASK, STEP, alpha=value), (-0.1, 1.5, math.nan)),
    ],
)
def test_probabilities_and_weights_outside_their_interval_are_refused(make, outside):
    for value in outside:
        with pytest.raises(ValueError, match=rf"must lie in .*; given {value}"):
            make(value)
    with pytest.raises(ValueError, match=r"must be a number; given '0.5'"):
        make("0.5")


@pytest.mark.parametrize("gap", [0, -1, 1.5, "5"])
def test_a_synchronisation_gap_below_one_step_is_refused(gap):
    with pytest.raises(ValueError, match=rf"SGD's steps must be a whole number of at least 1; given {gap!r}"):
        APFL(TASK, SGD(lr=0.1, steps=gap))


def test_the_bounds_of_the_fusion_penalty_say_what_to_change():
    with pytest.raises(
        ValueError, match=r"xi must lie below the penalty; given xi=0.5 and penalty=0.5. .*make it small"
    ):
        FPFC(TASK, STEP, penalty=0.5, xi=0.5)
    with pytest.raises(ValueError, match=r"a must lie above 1 \+ 1/rho = 3; given 3.* raise a \(3.7 is usual\) or rho"):
        FPFC(TASK, STEP, a=3.0, rho=0.5)


# With f'' of 1 to 4 a step of 5 multiplies errors by at least 4: 300 of them leave float64's range, 10^308, on the way.
STEEP = SGD(lr=5.0, steps=300, batch=None)
DIVERGING = {
    "FedAvg": FedAvg(TASK, STEEP),
    "FedProx": FedProx(TASK, STEEP),
    "FedDyn": FedDyn(TASK, STEEP),
    "FedSplit": FedSplit(TASK, STEEP),
    "SCAFFOLD": SCAFFOLD(TASK, STEEP),
    "APFL": APFL(TASK, STEEP),
    "Local": Local(TASK, STEEP),
    "PFedMe": PFedMe(TASK, STEEP, local_rounds=1),
    "PFedMac": PFedMac(TASK, STEEP, local_rounds=1),
    "FPFC": FPFC(TASK, STEEP),
}


@pytest.mark.parametrize("name", DIVERGING)
def test_a_learning_rate_that_diverges_names_the_clients_and_the_round(name):
    # no client starts at its own optimum, where any rate is harmless
    federation = scalars(THREE[0], [2.0, 1.0, 3.0])
    message = r"in round 1: 3 asked; NaN.* Left out: client-0 \(NaN or inf.*client-1.*client-2.* A lower learning rate"
    with pytest.raises(DivergenceError, match=message):
        fit(DIVERGING[name], federation, rounds=1, setting=Setting(engine="loop"))


def test_one_client_that_diverges_is_named_as_it_happens_and_the_others_go_on(caplog):
    # steps of 0.5 are stable for curvatures below 4; the last client's error grows 199 times in each of 150, to 10^345
    federation = scalars([1.0, 2.0, 400.0], [2.0, 1.0, 3.0])
    with caplog.at_level(logging.WARNING, logger="archipel"):
        run = fit(
            FedAvg(TASK, SGD(lr=0.5, steps=150, batch=None)), federation, rounds=2, setting=Setting(engine="loop")
        )
    assert [record["dropped"] for record in run.history] == [{"client-2": "NaN or infinite values"}] * 2
    assert "round 1: left out: client-2 (NaN or infinite values)" in caplog.text
    assert run.server["model"]["theta"].item() == pytest.approx(1.5, abs=1e-12)  # the mean of the others' optima
    assert bool(torch.isfinite(run.server["model"]["theta"]).all())


def test_settings_of_the_wrong_type_are_told_without_a_traceback():
    with pytest.raises(ValueError, match=r"SGD's tolerance must be a number; given '1e-3'"):
        SGD(lr=0.1, steps=1, tolerance="1e-3")
    for given, kind in (("head", "a str"), (None, "a NoneType"), ([3], "a list")):
        with pytest.raises(TypeError, match=rf"FedPer's personal must be a list of names, .* given {kind}"):
            FedPer(TASK, STEP, personal=given)
    with pytest.raises(TypeError, match=r"Ditto's inner must be an algorithm, FedAvg.*given a SGD"):
        Ditto(STEP, STEP)


def test_dittos_inner_algorithm_shares_the_whole_model(uneven):
    task = classification(torch.nn.Linear(3, 4), uneven)
    for inner in (FedPer(task, STEP), FedBABU(task, STEP), FedDRM(task, STEP)):
        with pytest.raises(ValueError, match=rf"must share the whole model; {type(inner).__name__} keeps head apart"):
            fit(Ditto(inner, STEP), uneven, rounds=1)
