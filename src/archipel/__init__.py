"""Archipel: personalised, mixture-based and routing-enabled federated learning."""

from archipel.algorithm import (
    Adapts,
    Algorithm,
    Clients,
    DivergenceError,
    Embeds,
    NoReplyError,
    Personalises,
    Predicts,
    PredictsGlobally,
    Replies,
    Routes,
    RoutesEmbedded,
    Step,
)
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
from archipel.core.examples import ClientData, Examples
from archipel.core.sampling import Bernoulli, Full, Sample
from archipel.core.trees import PerClient, PerExample
from archipel.data.federation import Federation
from archipel.drm.refit import refitted
from archipel.drm.strangers import Watch
from archipel.experiments.loading import load
from archipel.fit import Moment, fit
from archipel.learning.criteria import CrossEntropy, SquaredError
from archipel.learning.networks import Network
from archipel.learning.sgd import SGD
from archipel.learning.tasks import Supervised, Whole, classification, regression
from archipel.runs.evaluate import Evaluation, evaluate
from archipel.runs.run import Prediction, Routing, Run

__version__ = "0.1.0"

__all__ = [
    "APFL",
    "FPFC",
    "IFCA",
    "L2SGD",
    "SCAFFOLD",
    "SGD",
    "Adapts",
    "Algorithm",
    "Bernoulli",
    "ClientData",
    "Clients",
    "Compressing",
    "CrossEntropy",
    "Ditto",
    "DivergenceError",
    "Embeds",
    "Evaluation",
    "Examples",
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
    "Federation",
    "Full",
    "Local",
    "Moment",
    "Network",
    "NoReplyError",
    "PFedMac",
    "PFedMe",
    "PerClient",
    "PerExample",
    "PersonalFedEM",
    "Personalises",
    "Pooled",
    "Prediction",
    "Predicts",
    "PredictsGlobally",
    "ProxSkip",
    "Replies",
    "Routes",
    "RoutesEmbedded",
    "Routing",
    "Run",
    "Sample",
    "SquaredError",
    "Step",
    "Supervised",
    "VRFedEM",
    "Watch",
    "Whole",
    "classification",
    "evaluate",
    "fit",
    "load",
    "refitted",
    "regression",
]
