"""Networks as functions of their parameters: single networks, C copies of a network, and linear heads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor, nn

from archipel.core import keys
from archipel.core.checks import setting
from archipel.core.torch_internals import BatchNormBase, tensor_stores
from archipel.core.trees import Tree
from archipel.data.inputs import Inputs
from archipel.learning.compiling import Named, WithBuffers, compile_mode, compiled_pass, to_memory_format
from archipel.learning.pooling import pool_first

Initial = Literal["keyed", "given"]


@setting("a Network(module, federation.inputs)")
@dataclass(frozen=True, eq=False)
class Network:
    """A module ``(n, *shape) → (n, features)`` as a function of parameters and raw inputs.

    The network normalises its inputs, so that training, evaluation and serving can't differ. Parameters are trees with
    the module's own names, nested at the dots. Parameters with ``requires_grad=False`` are constants of the network:
    they keep the values that the module has, and are in no tree, so that no method moves, averages or sends them.

    Args:
        module: any ``torch.nn.Module``.
        inputs: how raw inputs are normalised; ``None``: not at all.
        initial: ``"keyed"`` draws new weights from the run's key with every submodule's ``reset_parameters``;
            ``"given"`` starts from the module's weights (pretrained weights, say). Frozen weights are never drawn.

    Raises:
        ValueError: with ``initial="keyed"``, a submodule has parameters of its own and no ``reset_parameters``; or a
            BatchNorm layer keeps no running statistics.
        TypeError: ``module`` isn't a ``torch.nn.Module``.

    >>> network = Network(nn.Linear(4, 2))
    >>> params, buffers = network.init(keys.key(0))
    >>> network(params, buffers, torch.zeros(3, 4))[0].shape
    torch.Size([3, 2])
    """

    module: nn.Module
    inputs: Inputs | None = None
    initial: Initial = "keyed"

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"A Network takes a torch.nn.Module; given {self.module!r:.80}.")
        if self.initial not in ("keyed", "given"):
            raise ValueError(f"Network's initial must be 'keyed' or 'given'; given {self.initial!r}.")
        for name, module in self.module.named_modules():
            if isinstance(module, BatchNormBase) and not module.track_running_stats:
                raise ValueError(
                    f"The submodule {name or 'at the root'} ({type(module).__name__}) has track_running_stats=False: "
                    "it normalises each query by the others asked with it, and can't answer a single one. Use "
                    "track_running_stats=True, or GroupNorm or LayerNorm."
                )
        if self.initial == "keyed":
            for name, module in self.module.named_modules():
                own = any(p.requires_grad for p in module.parameters(recurse=False))
                if own and not hasattr(module, "reset_parameters"):
                    raise ValueError(
                        f"The submodule {name or 'at the root'} ({type(module).__name__}) has parameters of its own "
                        "but no reset_parameters(), so its weights can't be drawn from the run's seed. Define that "
                        "method, or use initial='given' to start from the weights it has."
                    )

    def init(self, key: Tensor) -> tuple[Tree, Tree]:
        """Return the parameters and buffers to start from."""
        module = copy.deepcopy(self.module)
        if self.initial == "keyed":
            with keys.torch_generator(key):
                for part in reversed(list(module.modules())):  # a module after its submodules
                    if callable(reset := getattr(part, "reset_parameters", None)):
                        reset()
        params = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
        buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
        return _nest(params), _nest(buffers)

    def features(self) -> int:
        """Return the width of the output, found by a dry run.

        Raises:
            ValueError: the network has no ``inputs``, can't process them, or its output isn't ``(n, features)``.
        """
        if self.inputs is None:
            raise ValueError("The network doesn't know the shape of its inputs: make it with Network(module, inputs).")
        shape = self.inputs.shape
        was = self.module.training
        try:
            with torch.no_grad():
                out = torch.func.functional_call(self.module.eval(), {}, (torch.zeros(1, *shape),))
        except RuntimeError as error:
            raise ValueError(
                f"{type(self.module).__name__} can't process the federation's examples, float32 of shape "
                f"(n, *{shape}): {error}"
            ) from error
        finally:
            self.module.train(was)
        if not isinstance(out, Tensor) or out.dim() != 2:
            found = tuple(out.shape) if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ValueError(f"The encoder must map (n, *{shape}) to (n, features); it gave {found} for n = 1.")
        return int(out.shape[1])

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, train: bool = False) -> tuple[Tensor, Tree]:
        """Return the outputs, and the buffers after the pass; only training changes them (BatchNorm's)."""
        named, before = self._constants(x.device) | _unnest(params), _unnest(buffers)
        if self.inputs is not None:
            x = self.inputs.normalise(x)
            if self.inputs.double and all(p.dtype != torch.float64 for p in named.values()):
                x = x.float()  # float64 was needed to centre values, which are small now
        if self._convolves:
            x = to_memory_format(x)
        if self._optimised.training is not train:
            self._optimised.train(train)
        try:
            if mode := compile_mode():
                prefixed = {f"module.{name}": tensor for name, tensor in (named | before).items()}
                out, after = compiled_pass(mode, self._with_buffers, prefixed, x)
                kept = {name: after[f"module.{name}"] for name in before}
            else:
                out, kept = self._pass(named, {name: t.clone() if train else t for name, t in before.items()}, x)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "BatchNorm can't normalise a minibatch of one example, and a client has one: the rest of a pass, or "
                "all its data. Change the solver's batch (None: all data in every step), leave out clients with one "
                "example, or use GroupNorm."
            ) from error
        return out, _nest(kept) if train else buffers

    def _pass(self, params: Named, buffers: Named, x: Tensor) -> tuple[Tensor, Named]:
        """Return the output, and the buffers afterwards; the given buffers may change."""
        named = params | buffers
        own = []
        try:
            for store, key, name in self._places:
                if name in named:
                    own.append((store, key, store[key]))
                    store[key] = named[name]
            out = self._optimised(x)
            # Read back, since a module may replace its buffers by new tensors.
            if buffers:
                buffers = buffers | {name: store[key] for store, key, name in self._places if name in buffers}
            return out, buffers
        finally:
            for store, key, tensor in own:
                store[key] = tensor

    def _constants(self, device: torch.device) -> Named:
        """Return the frozen parameters on a device, copied there once."""
        if device not in self._frozen:
            home = self._frozen[torch.device("cpu")]
            self._frozen[device] = {name: tensor.to(device) for name, tensor in home.items()}
        return self._frozen[device]

    @cached_property
    def _frozen(self) -> dict[torch.device, Named]:
        named = self.module.named_parameters()
        return {torch.device("cpu"): {name: p.detach().cpu() for name, p in named if not p.requires_grad}}

    @cached_property
    def _optimised(self) -> nn.Module:
        return pool_first(self.module)

    @cached_property
    def _convolves(self) -> bool:
        """Whether the memory format of images matters; without convolutions, converting them is a waste."""
        return any(p.dim() == 4 for p in self.module.parameters())

    @cached_property
    def _with_buffers(self) -> WithBuffers:
        return WithBuffers(self._optimised)

    @cached_property
    def _places(self) -> list[tuple[dict[str, Any], str, str]]:
        """The module's tensors: the dictionary that holds each, the key in it, and the name in a tree of parameters.

        ``torch.func.functional_call`` searches for them on every call, which takes longer than a small model's pass.
        A tensor in several places (tied weights) has one name.
        """
        names: dict[int, str] = {}
        return [
            (store, key, names.setdefault(id(tensor), f"{path}.{key}" if path else key))
            for path, part in self._optimised.named_modules()
            for store in tensor_stores(part)
            for key, tensor in store.items()
            if tensor is not None
        ]

    def __getstate__(self) -> dict[str, Any]:
        # A copy finds these in its own module.
        own = ("_frozen", "_optimised", "_with_buffers", "_places")
        return {name: value for name, value in self.__dict__.items() if name not in own}


def encoder_model(encoder: Network | Copies, key: Tensor) -> Tree:
    """Draw a model that is an encoder alone: ``{"encoder": …}``, and ``"buffers"`` where it has some."""
    params, buffers = encoder.init(key)
    return {"encoder": params} | ({"buffers": buffers} if buffers else {})


@dataclass(frozen=True, eq=False)
class Copies:
    """C encoders for C components: one that all share, or independent copies of a network.

    Args:
        network: the encoder.
        count: C.
        shared: one set of parameters for all components, or one for each.
    """

    network: Network
    count: int
    shared: bool

    def init(self, key: Tensor) -> tuple[Tree, Tree]:
        """Return the parameters and buffers to start from."""
        if self.shared:
            return self.network.init(key)
        drawn = [self.network.init(keys.fold(key, c)) for c in range(self.count)]
        buffers = {str(c): buffers for c, (_, buffers) in enumerate(drawn) if buffers}
        return {str(c): params for c, (params, _) in enumerate(drawn)}, buffers

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, train: bool = False) -> tuple[Tensor, Tree]:
        """Return ``(n, C, features)`` outputs, and the buffers after the pass."""
        if self.shared:
            z, buffers = self.network(params, buffers, x, train)
            return z[:, None].expand(-1, self.count, -1), buffers
        passes = {c: self.network(params[c], buffers.get(c, {}), x, train) for c in params}
        after = {c: buffers for c, (_, buffers) in passes.items() if buffers}
        return torch.stack([z for z, _ in passes.values()], dim=1), after

    def features(self, model: Tree, x: Tensor) -> Tensor:
        """Return ``(n, C, features)`` of a model as it predicts; ``(n, 1, features)`` of a shared encoder."""
        z, _ = self(model["encoder"], model.get("buffers", {}), x)
        return z[:, :1] if self.shared else z


def _nest(named: dict[str, Tensor]) -> Tree:
    root: dict[str, Any] = {}
    for path, value in named.items():
        *parents, last = path.split(".")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return root


def _unnest(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for name, child in tree.items():
        path = f"{prefix}{name}"
        named |= _unnest(child, path + ".") if isinstance(child, dict) else {path: child}
    return named


def linear_init(key: Tensor, outputs: int, features: int, dtype: torch.dtype = torch.float32) -> Tree:
    """Draw a linear head's parameters, uniform on ±1/√features like those of ``torch.nn.Linear``.

    >>> {name: tuple(p.shape) for name, p in linear_init(keys.key(0), 3, 5).items()}
    {'weight': (3, 5), 'bias': (3,)}
    """
    bound = features**-0.5
    weight = keys.uniform(keys.fold(key, "weight"), outputs, features, dtype=dtype)
    bias = keys.uniform(keys.fold(key, "bias"), outputs, dtype=dtype)
    return {"weight": bound * (2 * weight - 1), "bias": bound * (2 * bias - 1)}


def linear(head: Tree, z: Tensor) -> Tensor:
    """Apply a linear head, ``(n, features) → (n, outputs)``."""
    return F.linear(z, head["weight"], head["bias"])
