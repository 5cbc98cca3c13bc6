"""Who carries the steps out: a loop, batches, or other processes, all behind one handle."""

from archipel.engines.batched import Batched
from archipel.engines.carrier import Carrier, Outcome
from archipel.engines.handle import Handle, Ledger
from archipel.engines.loop import Loop
from archipel.engines.pool.processes import Processes
from archipel.engines.wire import Wire

__all__ = ["Batched", "Carrier", "Handle", "Ledger", "Loop", "Outcome", "Processes", "Wire"]
