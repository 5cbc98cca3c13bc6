"""Encoders: sizes by formula, shapes, seeds, errors, and stacked models equal to single ones."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from archipel.models import MLP, LeNet, ResNet, build

IMAGE = (3, 16, 16)
ALL = ["mlp", "lenet", "resnet8", "resnet20", "resnet18"]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def resnet_size(colours, widths, blocks, features):
    """Convolutions have no bias, every normalisation a scale and a shift a channel."""
    total, before = 9 * colours * widths[0] + 2 * widths[0], widths[0]
    for width in widths:
        for _ in range(blocks):
            total += 9 * before * width + 9 * width * width + 4 * width
            total += before * width + 2 * width if before != width else 0
            before = width
    return total + before * features + features


def test_mlp_has_weights_and_biases_of_its_layers():
    assert count(MLP((13,), features=32, hidden=(128,))) == (13 + 1) * 128 + (128 + 1) * 32
    assert count(MLP((5, 2), features=3, hidden=())) == (10 + 1) * 3
    assert count(MLP((4,), features=2, hidden=(7, 6))) == 5 * 7 + 8 * 6 + 7 * 2


@pytest.mark.parametrize(("side", "left"), [(16, 1), (17, 1), (28, 4), (32, 5)])
def test_lenet_has_two_convolutions_and_a_linear_layer(side, left):
    # s → (s − 4)/2 twice: 28 → 12 → 4.
    expected = (25 * 3 + 1) * 16 + 2 * 16 + (25 * 16 + 1) * 32 + 2 * 32 + (32 * left**2 + 1) * 10
    assert count(LeNet((3, side, side), features=10)) == expected


@pytest.mark.parametrize(
    ("depth", "widths", "blocks"),
    [(8, (16, 32, 64), 1), (20, (16, 32, 64), 3), (18, (64, 128, 256, 512), 2)],
)
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_resnets_have_the_published_form(depth, widths, blocks, norm):
    model = ResNet(IMAGE, features=10, depth=depth, norm=norm)
    assert count(model) == resnet_size(3, widths, blocks, 10)
    # As published: the depth counts 3×3 convolutions and the linear layer, not the shortcuts.
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert sum(module.kernel_size == (3, 3) for module in convolutions) + 1 == depth


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(1, 16, 20), (3, 28, 28), (4, 17, 33)])
@pytest.mark.parametrize("features", [2, 10])
def test_output_has_one_row_an_example(name, shape, features):
    if name == "resnet18":
        shape = (shape[0], 8, 8)  # small, to be quick
    with torch.no_grad():
        assert build(name, shape, features)(torch.rand(2, *shape)).shape == (2, features)


def test_a_grid_of_values_in_a_table_or_series_is_flattened():
    assert build("mlp", (7, 2), 5)(torch.rand(3, 7, 2)).shape == (3, 5)


@pytest.mark.parametrize("name", ALL)
def test_the_output_is_linear_and_takes_both_signs(name):
    torch.manual_seed(0)
    with torch.no_grad():
        out = build(name, IMAGE, 64)(torch.randn(4, *IMAGE))
    assert out.min() < 0 < out.max()


@pytest.mark.parametrize("name", ALL)
def test_standardised_features_have_mean_0_and_variance_1(name):
    with torch.no_grad():
        out = build(name, IMAGE, 64)(torch.randn(4, *IMAGE))
    # LayerNorm adds 1e-5 to the variance, which is some 1e-2 before it at the least.
    assert torch.allclose(out.mean(1), torch.zeros(4), atol=1e-5)
    assert torch.allclose(out.var(1, correction=0), torch.ones(4), atol=2e-2)
    assert build(name, IMAGE, 1, standardise=False)(torch.randn(4, *IMAGE)).shape == (4, 1)


@pytest.mark.parametrize("name", ALL)
def test_torchs_seed_determines_the_parameters(name):
    def parameters(seed):
        torch.manual_seed(seed)
        return torch.nn.utils.parameters_to_vector(build(name, IMAGE, 8).parameters()).detach()

    first = parameters(0)
    assert torch.equal(first, parameters(0))
    assert not torch.equal(first, parameters(1))


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet8", "resnet20"])
def test_gradients_of_stacked_models_equal_those_of_each(name):
    torch.manual_seed(0)
    models = [build(name, IMAGE, 4).double() for _ in range(3)]
    stacked, buffers = stack_module_state(models)
    assert not buffers
    x, target = torch.randn(3, 5, *IMAGE, dtype=torch.float64), torch.randn(3, 5, 4, dtype=torch.float64)

    def loss(parameters, x, target):
        return (functional_call(models[0], parameters, (x,)) - target).square().mean()

    together = vmap(grad(loss))({key: value.detach() for key, value in stacked.items()}, x, target)
    for i, model in enumerate(models):
        (model(x[i]) - target[i]).square().mean().backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad.abs().max() > 0
            assert torch.allclose(together[key][i], parameter.grad, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("model", [LeNet((3, 28, 28), 8), ResNet(IMAGE, 8, depth=8)])
def test_with_groupnorm_an_example_is_encoded_alike_in_any_batch(model):
    shape = (3, 28, 28) if isinstance(model, LeNet) else IMAGE
    x = torch.randn(6, *shape)
    assert torch.allclose(model(x)[:1], model(x[:1]), atol=1e-5)


def test_groups_divide_channels():
    groups = [
        m.num_groups
        for m in LeNet((3, 28, 28), channels=(6, 16), groups=4).modules()
        if isinstance(m, torch.nn.GroupNorm)
    ]
    assert groups == [2, 4]


def test_batchnorm_has_statistics_and_groupnorm_none():
    assert not list(ResNet(IMAGE).buffers())
    assert any(name.endswith("running_mean") for name, _ in ResNet(IMAGE, norm="batch").named_buffers())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet-20"}, "Did you mean 'resnet20'"),
        ({"name": "xyz"}, "There are: mlp, lenet"),
        ({"name": "lenet", "group": 4}, "lenet has no option 'group'. Did you mean 'groups'"),
        ({"name": "resnet8", "depth": 20}, "resnet8 has no option 'depth'"),
        ({"name": "lenet", "shape": (3, 15, 28)}, "16×16 pixels or more; they are 15×28"),
        ({"name": "lenet", "shape": (13,)}, r"shape is \(13,\). Use an MLP"),
        ({"name": "resnet8", "shape": (13, 2)}, "Use an MLP"),
        ({"name": "resnet8", "norm": "layer"}, "norm is 'layer'"),
        ({"name": "lenet", "groups": 0}, "groups is 0"),
        ({"name": "mlp", "hidden": (0,)}, "hidden"),
        ({"name": "lenet", "features": 0}, "features is 0"),
        ({"name": "mlp", "features": 1}, "standardise=False"),
    ],
)
def test_unknown_names_and_impossible_shapes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**{"shape": IMAGE, **arguments})


def test_unknown_depths_are_refused():
    with pytest.raises(ValueError, match="one of 8, 18, 20"):
        ResNet(IMAGE, depth=50)
