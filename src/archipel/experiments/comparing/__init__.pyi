from archipel.experiments.comparing.comparison import Comparison as Comparison
from archipel.experiments.comparing.comparison import compare as compare
from archipel.experiments.comparing.differences import Difference as Difference
from archipel.experiments.comparing.differences import difference as difference
from archipel.experiments.comparing.sweeping import sweep as sweep
