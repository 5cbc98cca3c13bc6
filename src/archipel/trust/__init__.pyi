from archipel.trust.reveals import Revealed as Revealed
from archipel.trust.reveals import reveals as reveals
