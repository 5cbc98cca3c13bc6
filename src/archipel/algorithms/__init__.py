"""One file a paper."""

from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedspm import FedSPM

__all__ = ["FedAvg", "FedSPM"]
