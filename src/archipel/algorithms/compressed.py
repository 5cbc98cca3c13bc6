"""Compressed uplinks for any algorithm, with error feedback.

F. Seide, H. Fu, J. Droppo, G. Li, D. Yu: 1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs. Interspeech 2014. S. U. Stich, J.-B. Cordonnier, M. Jaggi: Sparsified SGD with
memory. NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from archipel.algorithm import Algorithm, Clients, Info
from archipel.algorithms.parts.sending import ERRORS, Sending
from archipel.compress.compressor import Compressor
from archipel.compress.replies import Packing
from archipel.core.examples import ClientData
from archipel.core.trees import Tree

OFFERED = ("task", "predict", "predict_global", "personalises", "adapt", "route")
EMBEDDED = ("embed", "predict_embedded", "route_embedded")


@dataclass(frozen=True, eq=False)
class Compressing(Algorithm):
    """An algorithm whose clients send compressed replies; all else is the inner algorithm's.

    A tensor of a reply is compressed if the message has a tensor of the same name and shape: a model. With θ the
    message's and θ_i the client's, the client sends Q(θ_i − θ), and the server restores θ + Q(θ_i − θ).

    A biased Q (top-k) gets error feedback: a client keeps what was left out, e_i, and adds it the next time it is
    asked,

        sent_i = Q(θ_i − θ + e_i), e_i ← θ_i − θ + e_i − sent_i, e_i = 0 at enrolment.

    The rest of a reply is sent uncompressed: scalars (losses), BatchNorm's statistics and counts, which compression
    would spoil, tensors so small that nothing would be saved, and sums, whose weight the server doesn't know. The
    states are the inner algorithm's, and e_i at the clients. So it predicts, adapts and routes if the inner one does.

    Args:
        inner: any algorithm.
        uplink: Q; its draws differ between rounds, clients, steps and tensors.
        entries: names of the entries of replies to compress, ``("model", "change")`` for SCAFFOLD; an entry that the
            message lacks is compressed itself instead of its change. Default: all that the message holds too.
        feedback: whether a biased Q gets error feedback; an unbiased one never does. The client keeps an e for each
            tensor of the server's state (in ``entries``) that it may have to send.

    Raises:
        TypeError: what is no algorithm, or no compressor.
        ValueError: in the first round, that nothing the clients send is to be compressed, or has no e.

    >>> import torch
    >>> from archipel import SGD, Compressing, FedAvg, fit
    >>> from archipel.compress import Dithering
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
        super().__post_init__()
        if not (self.entries is None or self.entries):
            raise ValueError("Compressing's entries must name at least one entry, ('model',), say, or be None.")
        # Both states are the inner algorithm's, so what it offers is offered here, and nothing else is.
        for name in OFFERED + EMBEDDED:
            if hasattr(self.inner, name):
                object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def packing(self) -> Packing:
        return Packing(self.uplink, self.entries, self.feedback)

    def init_server(self, clients: Clients, key: Tensor) -> Tree:
        server = self.inner.init_server(Sending(clients, self, self.packing, plain=True), key)
        if self.packing.remembers and not self.packing.no_errors(server):
            named = "its server's state" if self.entries is None else f"the entries {', '.join(self.entries)}"
            raise ValueError(
                f"{type(self.uplink).__name__} needs error feedback, and nothing in {named} is what clients of "
                f"{type(self.inner).__name__} could send. Use an unbiased compressor such as RandK, or feedback=False."
            )
        return server

    def init_client(self, message: Tree, data: ClientData, key: Tensor) -> Tree:
        client = self.inner.init_client(message, data, key)
        return client | ({ERRORS: self.packing.no_errors(message["server"])} if self.packing.remembers else {})

    def round(self, server: Tree, clients: Clients, key: Tensor) -> tuple[Tree, Info]:
        sending = Sending(clients, self, self.packing)
        result = self.inner.round(server, sending, key)
        if clients.round == 0 and not sending.compressed:
            raise ValueError(
                f"Nothing that clients of {type(self.inner).__name__} send can be compressed. Name in entries what "
                f"should be; their replies hold {', '.join(sorted(sending.other)) or 'nothing'}."
            )
        return result
