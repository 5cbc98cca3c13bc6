from archipel.engines.batched import Batched as Batched
from archipel.engines.carrier import Carrier as Carrier
from archipel.engines.handle import Handle as Handle
from archipel.engines.handle import Ledger as Ledger
from archipel.engines.loop import Loop as Loop
from archipel.engines.outcome import Outcome as Outcome
from archipel.engines.pool.processes import Processes as Processes
from archipel.engines.wire import Wire as Wire
