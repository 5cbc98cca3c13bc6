from archipel.runs.metrics.assessment import Assessment as Assessment
from archipel.runs.metrics.assessment import Row as Row
from archipel.runs.metrics.assessment import assess as assess
from archipel.runs.metrics.counts import EDGES as EDGES
from archipel.runs.metrics.counts import Counts as Counts
from archipel.runs.metrics.counts import count_scores as count_scores
from archipel.runs.metrics.estimate import Estimate as Estimate
