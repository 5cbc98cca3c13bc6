"""Who carries the steps out: a loop, batches, or other processes, all behind one handle."""

from archipel.clients.batched import Batched
from archipel.clients.carrier import Carrier, Outcome
from archipel.clients.handle import Handle, Ledger
from archipel.clients.loop import Loop
from archipel.clients.processes import Processes
from archipel.clients.wire import Wire

__all__ = ["Batched", "Carrier", "Handle", "Ledger", "Loop", "Outcome", "Processes", "Wire"]
