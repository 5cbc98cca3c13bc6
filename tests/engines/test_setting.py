"""Settings of a run: how networks are carried out changes what a run costs, and its results by rounding alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archipel import SGD, FedAvg, Federation, Network, classification, fit
from archipel.core import keys
from archipel.core.trees import leaves, tree_map
from archipel.engines import Loop, Processes
from archipel.engines.operation_counter import OperationCounter
from archipel.engines.setting import Setting
from archipel.experiments import read_config, train
from archipel.learning import compiling as forward_module
from archipel.states.checkpoint import Checkpoint

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Sums of at most a hundred float32 products in another order: a few of 2⁻²⁴ of the largest term, kept over a few steps
of SGD."""


def close(one: Any, other: Any) -> None:
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, **ROUNDING)


def same(one: Any, other: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4), nn.Softplus())


def trained(
    federation: Federation, encoder: nn.Module, rounds: int = 2, folder: Path | None = None, **settings: Any
) -> Any:
    """Client sizes 9, 12, 25 and 17: minibatches of 5, 4, 2, and none of one example."""
    algorithm = FedAvg(classification(encoder, federation), SGD(lr=0.1, epochs=1, batch=5, momentum=0.9))
    return fit(algorithm, federation, rounds=rounds, folder=folder, setting=Setting(**settings))


def step(network: Network, x: Tensor, train: bool = True, **settings: Any) -> list[Tensor]:
    """Output, buffers afterwards and gradients of a pass as a step makes it."""
    params, buffers = network.init(keys.key(0))
    params = tree_map(torch.Tensor.requires_grad_, params)
    before = copy.deepcopy(buffers)
    with Setting(**settings).inside(), torch.set_grad_enabled(train), keys.torch_generator(keys.key(1)):
        out, after = network(params, buffers, x, train)
    same(before, buffers)
    # Uneven weights: of the plain sum of a normalised layer's squares all gradients vanish.
    loss = (out * torch.linspace(0, 1, out.numel()).reshape(out.shape)).mean()
    gradients = torch.autograd.grad(loss, leaves(params)) if train else ()
    return [out, *leaves(after), *gradients]


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"precision": "float16"}, "'float32', 'bfloat16'; given 'float16'"),
        ({"memory_format": "nhwc"}, "'channels_last', 'contiguous'; given 'nhwc'"),
        ({"compile": "max-autotune"}, "None, 'default', 'reduce-overhead'; given 'max-autotune'"),
        ({"compile": True}, "given True"),
    ],
)
def test_other_settings_are_refused_by_name(settings: dict[str, Any], hint: str, uneven: Federation) -> None:
    with pytest.raises(ValueError, match=hint):
        trained(uneven, mlp(), **settings)


def test_the_resolved_configuration_says_what_differs_from_the_defaults(uneven: Federation, tmp_path: Path) -> None:
    assert Setting().describe() == {}
    assert Setting(device="meta", precision="bfloat16", memory_format="contiguous", compile="default").describe() == {
        "device": "meta", "precision": "bfloat16", "memory_format": "contiguous", "compile": "default"
    }  # fmt: skip
    trained(uneven, mlp(), rounds=1, engine="loop", memory_format="contiguous", folder=tmp_path)
    checkpoint = Checkpoint.load(tmp_path)
    assert checkpoint is not None
    assert checkpoint.facts["identity"]["engine"]["memory_format"] == "contiguous"


def test_the_wire_refuses_what_it_would_not_do(uneven: Federation) -> None:
    with pytest.raises(ValueError, match=r"engine='wire'.*given {'compile': 'default'}"):
        trained(uneven, mlp(), engine="wire", compile="default")


def test_a_configuration_has_them(tmp_path: Path) -> None:
    config = read_config("digits-fedavg", ["rounds=1", "engine=loop", "compile=reduce-overhead"])
    assert config.compile == "reduce-overhead"
    config = read_config("digits-fedavg", ["rounds=1", "engine=loop", "memory_format=contiguous"])
    train(config, tmp_path)
    checkpoint = Checkpoint.load(tmp_path)
    assert checkpoint is not None
    assert checkpoint.facts["identity"]["engine"]["memory_format"] == "contiguous"
    assert "compile" not in checkpoint.facts["identity"]["engine"]


class Strides(nn.Conv2d):
    """A convolution, since no other layer is asked about formats, that tells how its images lie."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(x.stride(), dtype=torch.float32).expand(len(x), 4)


def test_layers_that_do_not_convolve_take_images_as_they_lie() -> None:
    class Told(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor(x.stride(), dtype=torch.float32).expand(len(x), 4)

    assert Network(Told())({}, {}, torch.zeros(2, 2, 6, 6))[0][0].tolist() == [72, 36, 6, 1]


@dataclass(frozen=True, eq=False)
class Look:
    """A step that tells how its images lie."""

    network: Network

    def look(self, client: Any, message: Any, data: Any, key: Tensor) -> Any:
        return client, self.network({}, {}, data.train.columns["x"])[0][0]


@pytest.fixture(scope="module")
def images() -> Federation:
    generator = torch.Generator().manual_seed(0)
    drawn = [(torch.rand(n, 2, 6, 6, generator=generator), torch.arange(n) % 3) for n in (13, 17, 36, 24)]
    return Federation.from_arrays(drawn, test=0.3)


@pytest.mark.parametrize(
    ("memory_format", "strides"), [("channels_last", [72, 1, 12, 2]), ("contiguous", [72, 36, 6, 1])]
)
@pytest.mark.parametrize("where", ["loop", "threads", "processes"])
def test_images_lie_as_is_said_wherever_steps_run(
    where: str, memory_format: Any, strides: list[int], images: Federation
) -> None:
    algorithm = FedAvg(classification(nn.Flatten(), images), SGD(steps=1))
    setting = Setting(memory_format=memory_format, workers=1 if where == "loop" else 2)
    make = partial(Processes, kernel="loop") if where == "processes" else Loop
    carrier = make(algorithm, images, setting)
    try:
        outcomes = list(carrier.run(Look(Network(Strides(2, 1, 1))).look, {}, range(4), keys.key(0), training=False))
    finally:
        carrier.close()
    assert [outcome.replies[0].tolist() for outcome in outcomes] == [strides] * 4


def convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def test_memory_formats_agree(images: Federation) -> None:
    last, first = (trained(images, convolutions(), memory_format=f) for f in ("channels_last", "contiguous"))
    close(last.server, first.server)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All of torch's compiler but its last step, making machine code, which takes long: how often it was at work."""
    real, count = torch.compile, 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal count
        count += 1
        return graph

    def compiled(function: Any, options: Any, **settings: Any) -> Any:
        return real(function, backend=counting, **settings)

    monkeypatch.setattr(torch, "compile", compiled)
    forward_module._compiled.cache_clear()
    yield lambda: count
    forward_module._compiled.cache_clear()


def test_clients_rounds_and_threads_share_what_was_compiled(traced: Any, uneven: Federation) -> None:
    eager = trained(uneven, mlp(), engine="loop")
    one = trained(uneven, mlp(), rounds=1, engine="loop", compile="default")
    assert traced() == 2  # in training, for minibatches of any size; and in evaluation
    more = trained(uneven, mlp(), engine="loop", compile="default")
    threads = trained(uneven, mlp(), engine="threads", workers=3, compile="default")
    assert traced() == 2
    assert one.history[0]["loss"] == more.history[0]["loss"]
    same(more.server, threads.server)
    close(more.server, eager.server)
    assert more.metrics == pytest.approx(eager.metrics, rel=1e-5)


def test_clients_in_batches_are_one_compiled_pass(traced: Any, uneven: Federation) -> None:
    eager = trained(uneven, mlp(), engine="batched")
    batched = trained(uneven, mlp(), engine="batched", compile="default")
    # In the trial of two clients, and for all four; the model that evaluation asks is one for all.
    assert traced() == 3
    close(batched.server, eager.server)
    processes = trained(uneven, mlp(), engine="processes", workers=2, compile="default")
    close(processes.server, eager.server)


class Replaces(nn.Module):
    """A module that puts a new buffer in place of the one it was given, beside BatchNorm, which writes into its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(()))

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + len(x)
        return self.norm(x)


@pytest.mark.parametrize("train", [True, False])
def test_buffers_are_as_without_the_compiler(train: bool, traced: Any) -> None:
    network, x = Network(Replaces()), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    close(step(network, x, train, compile="default"), step(network, x, train))
    assert traced() == 1


class Reads(nn.Module):
    """What torch's compiler can't trace: a number that is read off a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.detach().abs().max().item())


def test_what_cannot_be_traced_runs_as_it_is(traced: Any) -> None:
    network, x = Network(nn.Sequential(nn.Linear(3, 2), Reads())), torch.randn(6, 3)
    same(step(network, x, compile="default"), step(network, x))


def test_who_counts_operations_sees_them_one_by_one(traced: Any) -> None:
    with OperationCounter() as counted:
        step(Network(mlp()), torch.zeros(6, 3), compile="default")
    assert counted.largest >= 2 * 6 * 3 * 8
    assert traced() == 0


def test_errors_are_the_models_own(traced: Any) -> None:
    with pytest.raises(ValueError, match="BatchNorm can't normalise a minibatch of one example"):
        step(Network(nn.BatchNorm1d(3)), torch.zeros(1, 3), compile="default")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        step(Network(nn.Linear(3, 2)), torch.zeros(2, 4), compile="default")


# From here on machine code is made: these tests need a C++ compiler, as compile="default" does on a CPU.


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """No pass that was compiled by another test is used, nor any that lies on the disk."""
    import torch._inductor.config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    forward_module._compiled.cache_clear()
    with inductor.patch(fx_graph_cache=False):
        yield inductor
    forward_module._compiled.cache_clear()


def test_machine_code_agrees_with_torchs_own_also_in_a_worker_that_was_forked_off(fresh: Any) -> None:
    """Threads of a compiler don't survive a fork: a worker must compile for itself after its parent has."""
    x = torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    network = Network(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5)))
    close(step(network, x, compile="default"), step(network, x))
    federation = Federation.from_arrays([(torch.randn(n, 3), torch.arange(n) % 3) for n in (9, 12)], test=0.0)
    processes = partial(Processes, kernel="loop", timeout=30.0)
    small = nn.Sequential(nn.Linear(3, 4), nn.Tanh())  # with more to compile, torch happens to begin a new thread
    run = trained(federation, small, engine=processes, workers=1, compile="default")
    close(run.server, trained(federation, small, engine="loop").server)


def test_without_a_compiler_it_is_said_what_is_missing(fresh: Any) -> None:
    said = r"couldn't compile Sequential for compile='default': .*/nowhere/g\+\+.*C\+\+ compiler"
    with fresh.patch("cpp.cxx", ("/nowhere/g++",)), pytest.raises(ValueError, match=said) as caught:
        step(Network(mlp()), torch.zeros(6, 3), compile="default")
    assert caught.value.__suppress_context__
    assert len(str(caught.value)) < 500
