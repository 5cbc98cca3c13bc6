"""Decisions that are logged and made again, and alarms that keep their promise."""

import hashlib
import hmac
import json
import math
import random
import statistics

import numpy as np
import pytest
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel_serve.models import Models
from archipel_serve.watching.decisions import DecisionLog, replay
from archipel_serve.watching.drift import Drift, average_run_length, limit_for


@pytest.mark.parametrize(("slack", "limit"), [(0.5, 4.0), (0.5, 5.0), (0.25, 8.0)])
def test_run_lengths_agree_with_siegmunds_formula(slack, limit):
    b = limit + 1.166
    siegmund = (math.exp(2 * slack * b) - 2 * slack * b - 1) / (2 * slack**2)
    # Siegmund's approximation is known to be within 2 % for these charts.
    assert average_run_length(limit, slack) == pytest.approx(siegmund, rel=0.02)


def test_false_alarms_come_as_rarely_as_promised_whatever_the_scores_are():
    promised, runs = 50, 400
    generator = random.Random(0)
    # A reference so large that its ranks add nothing; scores of a long tail.
    drift = Drift([generator.expovariate(1.0) for _ in range(20_000)], run_length=promised)
    lengths = []
    for _ in range(runs):
        length = 1
        while not drift.add(generator.expovariate(1.0)):
            length += 1
        lengths.append(length)
    # Run lengths are nearly geometric: the mean of 400 has a standard error of 50/20. Three of them.
    assert statistics.fmean(lengths) == pytest.approx(promised, abs=3 * promised / math.sqrt(runs))
    changed = 1
    while not drift.add(1 + generator.expovariate(1.0)):
        changed += 1
    assert changed < promised


def test_a_limit_gives_the_run_length_that_it_was_asked_for():
    for promised in (50, 10_000):
        assert average_run_length(limit_for(promised)) == pytest.approx(promised, rel=1e-3)  # the limit is to 1e-4
    with pytest.raises(ValueError, match="promise 10 to"):
        limit_for(2)


def test_decisions_are_logged_and_decided_again(router_run, router_bundle, image_bundle, uneven, tmp_path):
    models, key, file = Models(router_bundle), tmp_path / "key", tmp_path / "decisions.jsonl"
    key.write_text("a secret of the operator\n")
    x = np.concatenate([client.test["x"].numpy() for client in uneven.clients])
    posterior, names = models.log_posterior(x, models.embed(x)), models.manifest.names
    sites = [names[i] for i in posterior.argmax(-1)]
    log = DecisionLog(file, key, models)
    log.add([x[:5]], posterior[:5], None, sites[:5])
    log.close()
    log = DecisionLog(file, key, models)
    log.add([x[5:]], posterior[5:], None, sites[5:])
    log.close()
    assert file.stat().st_mode & 0o077 == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["site"] for line in lines] == sites
    expected = hmac.new(b"a secret of the operator", x[0].tobytes(), hashlib.sha256).hexdigest()
    assert lines[0]["query"] == expected
    assert list(replay(file, models)) == [None] * len(x)
    prior = [0.97, 0.01, 0.01, 0.01]
    words = ["replay", str(file), "--bundle", str(router_bundle), "--prior", ",".join(map(str, prior))]
    printed = CliRunner().invoke(app, words).output
    after = router_run.route(x, prior).clients.tolist()
    changes = list(replay(file, models, prior))
    assert [change.after if change else site for change, site in zip(changes, sites, strict=True)] == [
        names[i] for i in after
    ]
    assert any(changes)
    assert f"{sum(change is not None for change in changes)} of {len(x)} decisions change" in printed
    with pytest.raises(ValueError, match="was decided by another bundle"):
        next(replay(file, Models(image_bundle)))
    with pytest.raises(ValueError, match="has no stored query"):
        next(replay(file, models, again=True))
    stored = tmp_path / "stored.jsonl"
    log = DecisionLog(stored, key, models, store=True)
    log.add([x], posterior, None, sites)
    log.close()
    assert list(replay(stored, models, again=True)) == [None] * len(x)
    stored.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1 can't be read"):
        next(replay(stored, models))
    key.write_text("short")
    with pytest.raises(ValueError, match="needs 16 or more"):
        DecisionLog(stored, key, models)


def test_the_server_logs_its_decisions_without_the_query(serving, router_bundle, tmp_path):
    key, file = tmp_path / "key", tmp_path / "decisions.jsonl"
    key.write_text("a secret of the operator")
    with serving(router_bundle, "--decisions", file, "--decisions-key", key) as server:
        found = [server.ask(path, {"x": [123.456, 2, 3]})[1] for path in ("/route", "/answer")]
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["site"] for line in lines] == [found[0]["routes"][0]["site"], found[1]["answers"][0]["site"]]
    assert "123.45" not in file.read_text()
