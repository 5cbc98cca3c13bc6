"""What runs inside of a rank, where ranks must decide alike: batches, and the automatic choice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from archipel.algorithm import Algorithm, Step
from archipel.core.trees import Tree
from archipel.data.federation import Federation
from archipel.engines.batched import Batched
from archipel.engines.group import gathered
from archipel.engines.outcome import step_name
from archipel.engines.setting import DEFAULT, Setting
from archipel.engines.shards import owners, shards_of
from archipel.states.table import States


class BatchedShards(Batched):
    """:class:`Batched` for a rank: no batch reaches across shards, and only the rank's own clients are looked at.

    All ranks decide together whether a step can be batched.
    """

    def __init__(
        self, algorithm: Algorithm, federation: Federation, setting: Setting = DEFAULT, states: States | None = None
    ) -> None:
        super().__init__(algorithm, federation, setting, states)
        self._shards = torch.from_numpy(shards_of(federation.sizes))
        self._own = owners(federation.sizes, dist.get_world_size()) == dist.get_rank()
        self._settled: set[tuple[str, bool]] = set()

    def ready(self, step: Step, message: Tree, key: Tensor, training: bool) -> bool:
        name = step_name(step), training
        if self._fallen_back or name in self._settled:
            return not self._fallen_back
        verdicts = gathered((super().ready(step, message, key, training), self._fallen_back))
        if any(fallen for _, fallen in verdicts) and not self._fallen_back:
            self._fall_back(step, "another rank can't")
        if all(ready for ready, _ in verdicts):
            self._settled.add(name)
            return True
        return False

    def split(self, step: Step, message: Tree, ids: Sequence[int]) -> Sequence[Tensor]:
        if not ids:
            return ()
        everyone = torch.tensor(list(ids), dtype=torch.int64)
        sizes = torch.unique_consecutive(self._shards[everyone], return_counts=True)[1].tolist()
        most = self._chunk(step, message)
        return [chunk for shard in everyone.split(sizes) for chunk in shard.split(most)]

    def _clients(self) -> Sequence[int]:
        return np.flatnonzero(self._own).tolist()
