"""How far FedSPM's surrogate is from the objective that it replaces, measured along a run."""

from archipel.core.lazy import export

export(__name__)
