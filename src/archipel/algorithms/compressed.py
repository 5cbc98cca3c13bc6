"""Compressed uplinks for any algorithm, with error feedback. F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: 1-bit stochastic
gradient descent and its application to data-parallel distributed training of speech DNNs. Interspeech 2014. S. U.
Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with memory. NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.sending import ERRORS, Sending, same
from archipel.compress.compressor import DTYPES, Compressor
from archipel.core import keys
from archipel.core.checks import kind_of
from archipel.core.examples import ClientData
from archipel.core.trees import Tree, flatten, map_named, unflatten

OFFERED = (
    "task",
    "predict",
    "predict_global",
    "personalises",
    "adapt",
    "route",
    "embed",
    "predict_embedded",
    "route_embedded",
)


@dataclass(frozen=True, eq=False)
class Compressing(Algorithm):
    """An algorithm whose clients send compressed replies; all else is the inner algorithm's.

    Of a reply those tensors are compressed that the message holds too, under the same name and of the same shape: the
    models. With θ the message's and θ_i the client's, it sends Q(θ_i − θ), and the server restores θ + Q(θ_i − θ).

    A biased Q (top-k) gets error feedback: a client keeps what was left out, e_i, and adds it the next time it is
    asked,

        sent_i = Q(θ_i − θ + e_i), e_i ← θ_i − θ + e_i − sent_i, e_i = 0 at enrolment.

    What else a reply holds travels as it is: numbers of no dimension (losses), BatchNorm's statistics and counts, which
    wouldn't survive it, tensors so small that nothing would be saved, and what is asked for as a sum, whose weight the
    server doesn't know. The states are the inner algorithm's, but for e_i beside the client's; so it predicts, adapts
    and routes as the inner one does where that does.

    Args:
        inner: any algorithm.
        uplink: Q; its draws differ between rounds, clients, steps and tensors.
        entries: names of the entries of replies that are compressed, as they are where the message hasn't got them:
            ``("model", "change")`` for SCAFFOLD; default: all that the message holds too.
        feedback: whether a biased Q gets error feedback; an unbiased one never does. The client keeps an e for each
            tensor of the server's state (in ``entries``) that may be meant.

    Raises:
        TypeError: what is no algorithm, or no compressor.
        ValueError: in the first round, that nothing the clients send is to be compressed, or has no e.

    >>> from archipel.learning.sgd import SGD
    >>> from archipel.algorithms.fedavg import FedAvg
    >>> from archipel.fit import fit
    >>> from archipel.compress.dithering import Dithering
    >>> from archipel.learning.quadratic import Quadratic, quadratic_federation
    >>> A, a = torch.eye(16).repeat(2, 1, 1), torch.ones(2, 16)
    >>> fedavg = FedAvg(Quadratic(16), SGD(lr=0.2, steps=1, batch=None))
    >>> run = fit(Compressing(fedavg, Dithering(levels=4)), quadratic_federation(A, a), rounds=40)
    >>> (run.server["model"]["theta"] - 1).abs().max().item() < 1e-3
    True
    >>> run.history[0]["uplink"]  # 2 clients; a norm of 8 bytes, 16 entries of 4 bits, and the loss of 8 bytes
    48
    """

    inner: Algorithm
    uplink: Compressor
    entries: Sequence[str] | None = None
    feedback: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Algorithm):
            raise TypeError(f"Compressing's inner is an algorithm, FedAvg(…), say; given {kind_of(self.inner)}.")
        if isinstance(self.uplink, type) or not all(hasattr(self.uplink, n) for n in ("omega", "bits", "decode")):
            raise TypeError(
                f"Compressing's uplink is a compressor, Dithering(levels=4), say; given {kind_of(self.uplink)}."
            )
        if isinstance(self.entries, str) or self.entries == ():
            raise ValueError(f"Compressing's entries are names of entries, ('model',), say; given {self.entries!r}.")
        # Both states are the inner algorithm's, so what it offers is offered here, and nothing else is.
        for name in OFFERED:
            if hasattr(self.inner, name):
                object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def remembers(self) -> bool:
        """Whether clients keep what is left out."""
        return self.feedback and not self.uplink.unbiased

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = self.inner.init_server(Sending(clients, self, plain=True), key)
        if self.remembers and not self._nothing_left_out(server):
            named = "its server's state" if self.entries is None else f"the entries {', '.join(self.entries)}"
            raise ValueError(
                f"{type(self.uplink).__name__} needs error feedback, and nothing in {named} is what clients of "
                f"{type(self.inner).__name__} could send. Take an unbiased compressor, RandK, say, or feedback=False."
            )
        return server

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = self.inner.init_client(message, data, key)
        return client | {ERRORS: self._nothing_left_out(message["server"])} if self.remembers else client

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        sending = Sending(clients, self)
        result = self.inner.round(server, sending, key)
        if clients.round == 0 and not sending.compressed:
            raise ValueError(
                f"Nothing that clients of {type(self.inner).__name__} send can be compressed: name what should be in "
                f"entries. Their replies hold {', '.join(sorted(sending.other)) or 'nothing'}."
            )
        return result

    def pack(self, reply: Tree, known: dict[str, Tensor], errors: Tree, key: Tensor) -> tuple[Tree, Tree]:
        """A client's reply as it is sent, and what is now left out."""
        left = flatten(errors)

        def send(name: str, value: Any) -> Any:
            if not self.meant(name, value, known) or not self.pays(value):
                return value
            if self.remembers and name not in left:
                raise ValueError(
                    f"{type(self.uplink).__name__} needs error feedback, and {name!r} isn't in the server's state, "
                    "from which a client knows what it will have to keep. Name other entries, take an unbiased "
                    "compressor, RandK, say, or feedback=False."
                )
            whole = value - known[name] if same(value, known.get(name)) else value
            whole = whole + left[name] if self.remembers else whole
            packed = self.uplink(whole, keys.fold(key, name))
            if self.remembers:
                left[name] = whole - packed.decode()
            return packed

        reply = map_named(send, reply)
        return reply, unflatten(left) if left else errors

    def meant(self, name: str, value: Any, known: dict[str, Tensor], stacked: bool = False) -> bool:
        """Whether this part of a reply is to be compressed, going by its name; both ends must agree."""
        if not isinstance(value, Tensor) or value.dim() == int(stacked) or value.dtype not in DTYPES:
            return False
        if "buffers" in name.split("/"):
            return False
        named = self.entries is not None and name.split("/")[0] in self.entries
        return named or (self.entries is None and same(value, known.get(name), stacked))

    def pays(self, value: Tensor) -> bool:
        """Whether it is smaller when compressed."""
        size = value.numel()
        return size > 0 and self.uplink.bits(size, value.dtype) < size * value.element_size() * 8

    def _nothing_left_out(self, server: Tree) -> Tree:
        """E = 0 for every tensor of the server's state that a client may have to send."""
        named = {name: value for name, value in flatten(server).items() if self.meant(name, value, {name: value})}
        return unflatten({name: torch.zeros_like(value) for name, value in named.items() if self.pays(value)})
