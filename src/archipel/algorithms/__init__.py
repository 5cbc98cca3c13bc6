"""One file a paper."""

from archipel.algorithms.apfl import APFL
from archipel.algorithms.compressed import Compressing
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedavgft import FedAvgFT
from archipel.algorithms.fedbabu import FedBABU
from archipel.algorithms.fedcr import FedCR
from archipel.algorithms.feddrm import FedDRM
from archipel.algorithms.feddyn import FedDyn
from archipel.algorithms.fedem import FedEM
from archipel.algorithms.fedem_experts import FedEMExperts
from archipel.algorithms.fedgmm import FedGMM
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fedrep import FedRep
from archipel.algorithms.fedsplit import FedSplit
from archipel.algorithms.fedspm import FedSPM
from archipel.algorithms.fpfc import FPFC
from archipel.algorithms.ifca import IFCA
from archipel.algorithms.l2sgd import L2SGD
from archipel.algorithms.local_only import Local
from archipel.algorithms.personal_fedem import PersonalFedEM
from archipel.algorithms.pfedmac import PFedMac
from archipel.algorithms.pfedme import PFedMe
from archipel.algorithms.pooled import Pooled
from archipel.algorithms.proxskip import ProxSkip
from archipel.algorithms.scaffold import SCAFFOLD
from archipel.algorithms.vrfedem import VRFedEM

__all__ = [
    "APFL",
    "FPFC",
    "IFCA",
    "L2SGD",
    "SCAFFOLD",
    "Compressing",
    "Ditto",
    "FedAvg",
    "FedAvgFT",
    "FedBABU",
    "FedCR",
    "FedDRM",
    "FedDyn",
    "FedEM",
    "FedEMExperts",
    "FedGMM",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSPM",
    "FedSplit",
    "Local",
    "PFedMac",
    "PFedMe",
    "PersonalFedEM",
    "Pooled",
    "ProxSkip",
    "VRFedEM",
]
