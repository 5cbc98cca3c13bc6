"""Archipel: personalised, mixture-based and routing-enabled federated learning."""

from archipel.algorithm import (
    Adapts,
    Algorithm,
    Clients,
    DivergenceError,
    NoReplyError,
    Predicts,
    PredictsGlobally,
    Replies,
    Routes,
    Step,
)
from archipel.algorithms import (
    APFL,
    FPFC,
    L2SGD,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedCR,
    FedDyn,
    FedPer,
    FedProx,
    FedSplit,
    FedSPM,
    Local,
    PFedMac,
    PFedMe,
    ProxSkip,
)
from archipel.data import Federation
from archipel.engine import Moment, fit
from archipel.evaluate import Evaluation, evaluate
from archipel.examples import ClientData, Examples
from archipel.experiments.loading import load
from archipel.local import SGD
from archipel.run import Prediction, Routing, Run
from archipel.sampling import Full, Sample
from archipel.task import CrossEntropy, Network, SquaredError, Supervised, Whole, classification, regression
from archipel.trees import PerClient, PerExample

__version__ = "0.1.0"

__all__ = [
    "APFL",
    "FPFC",
    "L2SGD",
    "SCAFFOLD",
    "SGD",
    "Adapts",
    "Algorithm",
    "ClientData",
    "Clients",
    "CrossEntropy",
    "Ditto",
    "DivergenceError",
    "Evaluation",
    "Examples",
    "FedAvg",
    "FedCR",
    "FedDyn",
    "FedPer",
    "FedProx",
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
    "Prediction",
    "Predicts",
    "PredictsGlobally",
    "ProxSkip",
    "Replies",
    "Routes",
    "Routing",
    "Run",
    "Sample",
    "SquaredError",
    "Step",
    "Supervised",
    "Whole",
    "classification",
    "evaluate",
    "fit",
    "load",
    "regression",
]
