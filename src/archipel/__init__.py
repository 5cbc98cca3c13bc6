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
    L2SGD,
    Ditto,
    FedAvg,
    FedDyn,
    FedProx,
    FedSPM,
    Local,
    PFedMe,
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
    "L2SGD",
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
    "FedDyn",
    "FedProx",
    "FedSPM",
    "Federation",
    "Full",
    "Local",
    "Moment",
    "Network",
    "NoReplyError",
    "PFedMe",
    "PerClient",
    "PerExample",
    "Prediction",
    "Predicts",
    "PredictsGlobally",
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
