"""The numbers that the FedSPM paper publishes, in per cent: Tables 1 and 2 of arXiv 2607.04085.

Rows are named as in :data:`archipel.papers.fedspm.baselines.METHODS`. FedEM is the method of Marfoq et al., and
ClusterFL is IFCA. Table 1 gives means ± standard deviations over three seeds, Table 2 gives means.
"""

from __future__ import annotations

DATA = ("fashion-mnist", "cifar10", "cifar100")
"""The columns of Table 1; the labels of CIFAR-100 are its 20 superclasses."""

_TABLE1 = {
    # system accuracy: FMNIST, CIFAR-10, CIFAR-100; average accuracy: the same
    "fedavg": "39.15 1.31 35.02 0.32 18.17 0.53 39.15 1.31 35.02 0.32 18.17 0.53",
    "fedprox": "39.14 1.32 34.94 0.36 18.15 0.49 39.14 1.32 34.94 0.36 18.15 0.49",
    "fedavgft": "35.42 1.90 32.71 0.22 16.29 0.69 50.55 1.04 41.40 0.91 23.51 0.54",
    "ditto": "34.30 2.42 33.12 0.45 16.02 0.69 54.87 1.18 43.91 0.26 25.06 0.54",
    "clusterfl": "31.36 2.20 28.38 2.48 14.68 1.59 55.77 2.32 45.33 1.20 27.31 1.26",
    "fedbabu": "34.27 1.19 33.39 0.55 16.64 0.25 38.36 1.76 36.90 0.47 19.09 0.62",
    "fedem": "29.73 2.68 26.71 2.07 13.69 0.62 38.79 0.19 38.50 0.42 19.98 0.44",
    "fedgmm": "31.98 1.99 25.36 0.48 11.97 0.96 38.34 0.58 38.86 0.42 20.70 0.25",
    "feddrm": "53.68 1.01 47.47 0.09 27.15 0.37 53.69 1.01 47.62 0.11 27.55 0.37",
    "fedspm": "58.82 0.61 48.39 0.21 28.33 0.37 58.86 0.62 48.59 0.22 28.84 0.40",
    "fedspm-cx": "58.23 0.17 48.03 0.58 27.54 0.45 58.32 0.18 48.32 0.61 28.07 0.46",
}

INTER = ((0.5, 2.0), (1.0, 2.0), (2.0, 2.0))
INTRA = ((1.0, 0.5), (1.0, 1.0), (1.0, 2.0))
"""Table 2's (α_inter, α_intra): one varies, the other stays."""

_TABLE2 = {
    # inter: system 0.5 1 2, average 0.5 1 2; intra: the same
    "fedavg": "49.85 39.15 31.37 49.85 39.15 31.37 42.15 37.59 39.15 42.15 37.59 39.15",
    "fedprox": "49.88 39.14 31.34 49.88 39.14 31.34 42.10 37.58 39.14 42.10 37.58 39.14",
    "fedavgft": "45.87 35.42 27.67 62.45 50.55 45.01 36.72 33.42 35.42 54.11 50.99 50.55",
    "ditto": "45.28 34.30 25.56 65.87 54.87 49.36 34.26 31.42 34.30 58.22 55.44 54.87",
    "clusterfl": "40.77 31.36 23.96 68.80 55.77 52.41 34.79 31.22 31.36 61.48 57.66 55.77",
    "fedbabu": "42.93 34.27 27.82 50.14 38.36 31.45 37.16 35.09 34.27 40.70 39.21 38.36",
    "fedem": "37.08 29.73 25.70 49.68 38.79 31.57 33.43 28.88 29.73 41.78 39.47 38.79",
    "fedgmm": "34.33 31.98 24.57 49.22 38.34 31.83 28.92 27.90 31.98 44.08 38.59 38.34",
    "feddrm": "69.03 53.68 52.51 69.05 53.69 52.51 60.25 55.52 53.68 60.28 55.53 53.69",
    "fedspm": "74.20 58.82 55.68 74.24 58.86 55.70 62.83 63.10 58.82 62.89 63.20 58.86",
    "fedspm-cx": "73.15 58.23 56.57 73.21 58.32 56.65 62.48 61.33 58.23 62.58 61.40 58.32",
}

METRICS = ("system_accuracy", "average_accuracy")


def table1(method: str, source: str, metric: str) -> tuple[float, float] | None:
    """Return mean and standard deviation of a method's accuracy in per cent; ``None`` if the paper has none.

    >>> table1("fedspm", "cifar10", "system_accuracy")
    (48.39, 0.21)
    """
    if method not in _TABLE1 or source not in DATA or metric not in METRICS:
        return None
    numbers = [float(word) for word in _TABLE1[method].split()]
    place = 2 * (len(DATA) * METRICS.index(metric) + DATA.index(source))
    return numbers[place], numbers[place + 1]


def table2(method: str, alphas: tuple[float, float], metric: str) -> float | None:
    """Return a method's accuracy on Fashion-MNIST at (α_inter, α_intra) in per cent; ``None`` if the paper has none.

    >>> table2("feddrm", (0.5, 2.0), "average_accuracy")
    69.05
    """
    if method not in _TABLE2 or metric not in METRICS:
        return None
    numbers = [float(word) for word in _TABLE2[method].split()]
    for half, settings in enumerate((INTER, INTRA)):
        if alphas in settings:
            return numbers[6 * half + 3 * METRICS.index(metric) + settings.index(alphas)]
    return None
