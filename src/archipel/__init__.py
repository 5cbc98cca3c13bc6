"""Archipel: personalised, mixture-based and routing-enabled federated learning."""

from archipel.algorithm import (
    Adapts,
    Algorithm,
    Clients,
    NoReplyError,
    Predicts,
    PredictsGlobally,
    Replies,
    Routes,
    Step,
)
from archipel.algorithms import FedAvg, FedSPM
from archipel.data import Federation
from archipel.engine import DivergenceError, Moment, fit
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
    "SGD",
    "Adapts",
    "Algorithm",
    "ClientData",
    "Clients",
    "CrossEntropy",
    "DivergenceError",
    "Evaluation",
    "Examples",
    "FedAvg",
    "FedSPM",
    "Federation",
    "Full",
    "Moment",
    "Network",
    "NoReplyError",
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
