"""Tasks: networks as functions of keyed parameters, losses against torch and scikit-learn's ways to compute them."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from sklearn.metrics import log_loss
from torch import nn

from archipel import (
    SGD,
    CrossEntropy,
    FedAvg,
    Federation,
    Network,
    SquaredError,
    Whole,
    classification,
    fit,
    regression,
)
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.learning.contents import find_modules
from archipel.learning.networks import Copies, linear_init


class Bare(nn.Module):
    """Owns a parameter and can't draw it afresh."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return x * self.scale


class Scaled(Bare):
    def reset_parameters(self):
        nn.init.normal_(self.scale)


def test_weights_are_drawn_from_the_key_alone():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Scaled())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    (one, _), (same, _), (other, _) = (network.init(keys.key(seed)) for seed in (0, 0, 1))
    assert torch.equal(one["0"]["weight"], same["0"]["weight"])
    assert not torch.equal(one["0"]["weight"], other["0"]["weight"])
    # torch.nn.Linear draws uniformly on ±1/√3 for three inputs
    assert float(one["0"]["weight"].abs().max()) <= 3**-0.5
    torch.manual_seed(0)
    undisturbed = torch.rand(2)
    torch.manual_seed(0)
    drawn, _ = Network(module).init(keys.key(0))
    assert torch.equal(torch.rand(2), undisturbed)
    assert not torch.equal(drawn["2"]["scale"], before["2.scale"])
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_given_weights_are_kept_and_copied():
    module = nn.Sequential(nn.Linear(3, 3), Bare())
    params, _ = Network(module, initial="given").init(keys.key(0))
    assert torch.equal(params["0"]["weight"], module[0].weight)
    assert params["1"]["scale"].tolist() == [2.0] * 3
    params["1"]["scale"] += 1
    assert module[1].scale.tolist() == [2.0] * 3


def test_a_module_without_reset_parameters_is_refused_by_name():
    with pytest.raises(ValueError, match=r"submodule 1 \(Bare\) has parameters of its own but no reset_parameters"):
        Network(nn.Sequential(nn.Linear(3, 3), Bare()))
    with pytest.raises(ValueError, match="at the root"):
        Network(Bare())
    with pytest.raises(ValueError, match="initial must be 'keyed' or 'given'; given 'random'"):
        Network(nn.Linear(1, 1), initial="random")


def test_a_network_is_its_module_on_normalised_inputs(uneven):
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    network = Network(module, uneven.inputs, initial="given")
    x = uneven.clients[1].train["x"]
    out, buffers = network(*network.init(keys.key(0)), x)
    assert buffers == {}
    mean, std = (torch.tensor(values) for values in (uneven.inputs.mean, uneven.inputs.std))
    # float32: one rounding for the mean, one for the gain
    torch.testing.assert_close(out, module((x - mean) / std), rtol=1e-5, atol=1e-5)


def test_dropout_is_active_in_training_alone():
    network = Network(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5)), initial="given")
    params, x = network.init(keys.key(0))[0], torch.ones(4, 3)
    plain = network(params, {}, x)[0]
    assert torch.equal(plain, F.linear(x, params["0"]["weight"], params["0"]["bias"]))
    dropped = network(params, {}, x, train=True)[0]
    assert torch.equal(dropped[dropped != 0], 2 * plain[dropped != 0])
    assert 0 < (dropped == 0).double().mean() < 1
    assert torch.equal(network(params, {}, x)[0], plain)


class Running(nn.Module):
    """Puts a new buffer in place of the old one in training, and has one weight in two places."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.other.weight = self.one.weight
        self.register_buffer("count", torch.tensor(0.0))

    def forward(self, x):
        if self.training:
            self.count = self.count + len(x)
        return self.other(self.one(x))


def test_a_network_is_torchs_functional_call_and_leaves_its_module_alone():
    module = Running()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = Network(module, initial="given")
    params, buffers = network.init(keys.key(0))
    assert "weight" not in params["other"]  # it is tied
    params["one"]["weight"] = params["one"]["weight"] + 1
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    out, after = network(params, buffers, x, train=True)
    named = {f"{part}.{name}": p for part, tree in params.items() for name, p in tree.items()}
    assert torch.equal(out, torch.func.functional_call(module, named, (x,)))
    assert (float(buffers["count"]), float(after["count"])) == (0.0, 5.0)
    module.count.zero_()  # functional_call was given none
    with pytest.raises(RuntimeError):
        network(params, buffers, x[:, :2], train=True)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_copy_of_a_used_network_uses_its_own_module():
    network = Network(nn.Linear(3, 2))
    (one, _), x = network.init(keys.key(0)), torch.ones(1, 3)
    network(one, {}, x)
    other = copy.deepcopy(network)
    seen = []
    network.module.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    other.module.register_forward_pre_hook(lambda module, _: seen.append(module.weight))
    for each in (network, other):
        assert torch.equal(each(one, {}, x)[0], F.linear(x, one["weight"], one["bias"]))
    assert all(weight is one["weight"] for weight in seen)
    assert len(seen) == 2
    assert not torch.equal(other.module.weight, one["weight"])


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_a_module_in_the_format_that_convolutions_are_fast_in(channels):
    formats = []
    module = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten())
    module[0].register_forward_hook(lambda _, args, out: formats.append(args[0].stride()[1]))
    module[0].register_forward_hook(lambda _, args, out: formats.append(out.stride()[1]))
    network = Network(module)
    params, _ = network.init(keys.key(0))
    x = torch.randn(2, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    out, _ = network(params, {}, x)
    assert formats == [1, 1]  # channels lie next to one another, in what is given and in what comes of it
    expected = F.conv2d(x, params["0"]["weight"], params["0"]["bias"]).flatten(1)
    torch.testing.assert_close(out, expected)


def test_copies_are_one_network_or_several():
    network, x = Network(nn.Linear(3, 2)), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    shared, own = (Copies(network, 3, shared) for shared in (True, False))
    params, _ = shared.init(keys.key(0))
    z, _ = shared(params, {}, x)
    assert z.shape == (5, 3, 2)
    assert torch.equal(z[:, 0], z[:, 2])
    assert torch.equal(z[:, 1], network(params, {}, x)[0])
    params, _ = own.init(keys.key(0))
    z, _ = own(params, {}, x)
    for c in range(3):
        assert torch.equal(z[:, c], network(params[str(c)], {}, x)[0])
    assert not torch.equal(z[:, 0], z[:, 1])


def test_a_linear_head_is_uniform_as_torchs():
    head = linear_init(keys.key(0), 1000, 4)
    # uniform on ±1/2: variance 1/12, and 1/80 − 1/144 for the square's variance
    for values in head.values():
        assert float(values.abs().max()) <= 0.5
        assert abs(float(values.var()) - 1 / 12) < 4 * (1 / 180 / values.numel()) ** 0.5


def test_cross_entropy_is_scikit_learns_log_loss():
    generator = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(20, 4, generator=generator).double(), torch.randint(4, (20,), generator=generator)
    criterion = CrossEntropy()
    assert criterion.loss(outputs, y).mean().item() == pytest.approx(
        log_loss(y, outputs.softmax(-1), labels=range(4)), rel=1e-12
    )
    assert torch.allclose(criterion.report(outputs), outputs.softmax(-1).log())


def test_a_mixture_of_classifiers_mixes_probabilities_and_of_regressions_values():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 3, 4, generator=generator).double()
    weights = torch.randn(6, 3, generator=generator).double().softmax(-1)
    mixed = CrossEntropy().mix(weights.log(), outputs).exp()
    expected = torch.stack([sum(weights[j, c] * outputs[j, c].softmax(-1) for c in range(3)) for j in range(6)])
    torch.testing.assert_close(mixed, expected)
    torch.testing.assert_close(mixed.sum(-1), torch.ones(6, dtype=torch.float64))
    expected = torch.stack([sum(weights[j, c] * outputs[j, c] for c in range(3)) for j in range(6)])
    torch.testing.assert_close(SquaredError().mix(weights.log(), outputs), expected)


def test_a_squared_error_takes_one_target_or_several():
    outputs = torch.tensor([[1.0, 3.0]])
    assert SquaredError().loss(outputs, torch.tensor([[0.0, 1.0]])).tolist() == [2.5]
    assert SquaredError().loss(outputs[:, :1], torch.tensor([3.0])).tolist() == [2.0]


def test_supervised_parts_encoder_and_head(uneven):
    task = classification(nn.Linear(3, 5), uneven)
    params = task.init(keys.key(0))
    assert set(params) == {"encoder", "head"}
    assert params["head"]["weight"].shape == (3, 5)
    batch = uneven.clients[0].train
    losses, buffers = task.loss(params, batch)
    assert buffers == {}
    chosen = task.predict(params, batch["x"]).gather(1, batch["y"][:, None])[:, 0]
    torch.testing.assert_close(losses, -chosen)


def test_a_wrong_pairing_of_task_and_targets_is_refused(uneven):
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    numbers = Federation.from_arrays([(x, x[:, 0])])
    with pytest.raises(ValueError, match=r"not classes: use archipel\.regression"):
        classification(nn.Linear(2, 2), numbers)
    with pytest.raises(ValueError, match=r"are classes: use archipel\.classification"):
        regression(nn.Linear(3, 2), uneven)
    with pytest.raises(ValueError, match=r"must map \(n, \*\(3,\)\) to \(n, features\); it gave \(1, 3, 2\)"):
        classification(nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (3, 2))), uneven)
    with pytest.raises(ValueError, match="doesn't know the shape of its inputs"):
        Network(nn.Linear(3, 2)).features()


def test_modules_that_do_not_fit_are_refused(uneven):
    with pytest.raises(
        ValueError, match=r"Linear can't process the federation's examples, float32 of shape \(n, \*\(3,\)\)"
    ):
        classification(nn.Linear(4, 2), uneven)
    with pytest.raises(ValueError, match=r"Linear can't process .* float32"):
        classification(nn.Linear(3, 2).double(), uneven)
    with pytest.raises(ValueError, match=r"to \(n, features\); it gave a tuple"):
        classification(nn.Sequential(nn.Unflatten(1, (1, 3)), nn.GRU(3, 2)), uneven)
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module; given 'lenet'"):
        classification("lenet", uneven)
    with pytest.raises(TypeError, match=r"Whole takes a Network\(module, federation\.inputs\); given a Linear"):
        Whole(nn.Linear(3, 2), CrossEntropy())


def test_a_federated_regression_finds_the_least_squares_fit():
    # All clients follow one noiseless line, so the minimum is the line and its error is 0.
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(n, 2, generator=generator) for n in (20, 40)]
    federation = Federation.from_arrays([(x, torch.stack([x @ torch.tensor([2.0, -1.0]) + 3, x[:, 0]], 1)) for x in xs])
    task = regression(nn.Identity(), federation)
    assert federation.outputs == 2
    run = fit(FedAvg(task, SGD(lr=0.3, steps=10, batch=None)), federation, rounds=30)
    assert run.metrics["system_rmse"] < 1e-4
    found = run.predict(torch.tensor([[1.0, 1.0]]))
    assert found.labels is None
    # contraction 0.7 a step over 300 steps is far below float32's rounding of values near 4
    torch.testing.assert_close(found.values, torch.tensor([[4.0, 1.0]]), rtol=1e-4, atol=1e-4)


def test_a_whole_module_trains_as_encoder_and_head_do(uneven):
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    task = Whole(Network(module, uneven.inputs), CrossEntropy())
    params = task.init(keys.key(0))
    assert set(params) == {"module"}
    batch = uneven.clients[0].train
    expected = F.cross_entropy(task.predict(params, batch["x"]), batch["y"], reduction="none")
    torch.testing.assert_close(task.loss(params, batch)[0], expected)
    before = task.loss(params, batch)[0].mean()
    run = fit(FedAvg(task, SGD(lr=0.2, epochs=2, batch=8)), uneven, rounds=5)
    assert task.loss(run.server["model"], batch)[0].mean() < before
    assert 0 <= run.metrics["system_accuracy"] <= 1


def test_modules_are_found_wherever_a_dataclass_holds_them(uneven):
    task = classification(nn.Sequential(nn.Linear(3, 4), nn.Dropout()), uneven)
    found = {type(module) for module in find_modules([FedAvg(task, SGD(steps=1)), "not a module"])}
    assert found == {nn.Sequential, nn.Linear, nn.Dropout}


def _frozen(initial="keyed", norm=False):
    """An encoder whose first layer is frozen."""
    layers = [nn.Linear(3, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh(), nn.Linear(4, 2)]
    module = nn.Sequential(*layers)
    module[0].requires_grad_(False)
    return Network(module, initial=initial)


@pytest.mark.parametrize("initial", ["keyed", "given"])
def test_frozen_parameters_are_constants_of_the_network(initial):
    network = _frozen(initial)
    params, buffers = network.init(keys.key(0))
    assert list(params) == ["2"]  # the last layer alone
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    first = network.module[0]
    expected = F.linear(torch.tanh(F.linear(x, first.weight, first.bias)), params["2"]["weight"], params["2"]["bias"])
    torch.testing.assert_close(network(params, buffers, x)[0], expected)
    with keys.torch_generator(keys.key(1)):
        other, _ = copy.deepcopy(network).init(keys.key(0))
    assert torch.equal(other["2"]["weight"], params["2"]["weight"])


def test_a_frozen_layer_needs_no_way_to_draw_its_weights():
    module = nn.Sequential(Bare(), nn.Linear(3, 2))
    with pytest.raises(ValueError, match="no reset_parameters"):
        Network(module)
    module[0].requires_grad_(False)
    assert list(Network(module).init(keys.key(0))[0]) == ["1"]


def test_statistics_of_a_frozen_batch_norm_still_move():
    """As in torch, where requires_grad concerns the parameters alone."""
    network = _frozen(norm=True)
    network.module[1].requires_grad_(False)
    params, buffers = network.init(keys.key(0))
    assert list(params) == ["3"]
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    _, after = network(params, buffers, x, train=True)
    reference = copy.deepcopy(network.module).train()
    reference(x)
    torch.testing.assert_close(after["1"]["running_mean"], reference[1].running_mean)


def test_a_network_without_anything_to_train_is_run_as_it_is():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).requires_grad_(False)
    params, buffers = Network(module).init(keys.key(0))
    assert (params, buffers) == ({}, {})
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Network(module)(params, buffers, x)[0], module(x))
    solver = SGD(lr=0.1, steps=3, batch=None, momentum=0.9, clip=1.0, tolerance=0.0, weight_decay=0.1)

    def loss(params, batch):
        return Network(module)(params, {}, batch["x"])[0].square().sum(1), {}

    end = solver.minimise(loss, {}, Examples.of({"x": x}), keys.key(0), solver.rate(0, 1))
    assert end.params == {}
    torch.testing.assert_close(end.loss, module(x).square().sum(1).mean())
