"""One file a paper."""

from archipel.algorithms.apfl import APFL
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedcr import FedCR
from archipel.algorithms.feddyn import FedDyn
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fedsplit import FedSplit
from archipel.algorithms.fedspm import FedSPM
from archipel.algorithms.fpfc import FPFC
from archipel.algorithms.l2sgd import L2SGD
from archipel.algorithms.local_only import Local
from archipel.algorithms.pfedmac import PFedMac
from archipel.algorithms.pfedme import PFedMe
from archipel.algorithms.proxskip import ProxSkip
from archipel.algorithms.scaffold import SCAFFOLD

__all__ = [
    "APFL",
    "FPFC",
    "L2SGD",
    "SCAFFOLD",
    "Ditto",
    "FedAvg",
    "FedCR",
    "FedDyn",
    "FedPer",
    "FedProx",
    "FedSPM",
    "FedSplit",
    "Local",
    "PFedMac",
    "PFedMe",
    "ProxSkip",
]
