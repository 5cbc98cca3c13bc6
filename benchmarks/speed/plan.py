"""The workloads of ``make speed``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

from archipel.engines.setting import EngineName
from speed.measure import PEERS, Contender, Plan, Workload
from speed.work import Work
from speed.works_of_archipel import ROUTING_STEPS

W1 = Work(clients=8, cohort=8, examples=1280, batch=128, network="cnn", momentum=0.9)
W2 = Work(clients=1000, cohort=100, examples=60, batch=20)
W3 = Work(
    clients=8, cohort=8, examples=6000, batch=128, shape=(3, 28, 28), lr=0.01, momentum=0.9, steps=10, stored="bytes"
)
W5 = Work(clients=100_000, cohort=1000, examples=10, batch=5, stored="bytes")
W6 = Work(clients=300, cohort=300, examples=60, batch=20, shape=(1, 14, 14))
TINY = Work(clients=100, cohort=100, examples=60, batch=20, shape=(1, 4, 4))
ARCHIPEL, LOOP, PAIR, POOLING, VMAP, HAND = (
    "Archipel",
    "bare loop",
    "bare loop, 2 processes",
    "bare loop, 2 processes, pooling before ReLU",
    "bare vmap(grad)",
    "batched products by hand",
)
EXACT, INCREMENTAL, PLAIN, ROUTER = (
    "FedSPM, exact",
    "FedSPM, incremental",
    "FedAvg of the encoder",
    "FedAvg of the router",
)


def full(only: Iterable[str] | None = None) -> Plan:
    """Return the plan of all workloads: half an hour."""
    return _chosen(Plan(workloads(), turns=3, seconds=1.5), only)


def fast(only: Iterable[str] | None = None) -> Plan:
    """Return the plan of the workloads with targets, with fewer contenders and turns."""
    kept = ("W1", "W2", "W3", "population", "overhead", "growth")
    every = workloads(fast=True)
    return _chosen(Plan({name: every[name] for name in kept}, turns=2, seconds=0.7), only)


def _chosen(plan: Plan, only: Iterable[str] | None) -> Plan:
    if only is None:
        return plan
    names = [name.strip() for name in only]
    if unknown := [name for name in names if name not in plan.workloads]:
        raise ValueError(f"There is no workload {unknown[0]!r}; there are {', '.join(plan.workloads)}.")
    return replace(plan, workloads={name: plan.workloads[name] for name in names})


def workloads(fast: bool = False) -> dict[str, Workload]:
    """Return all workloads by name."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "W1": Workload(
            f"{W1.clients} clients × {W1.local_steps} SGD-momentum steps × batch {W1.batch}, a CNN on 28 × 28",
            [
                Contender(ARCHIPEL, "archipel", W1),
                *([] if fast else engines(W1)),
                *([] if fast else [Contender(f"{ARCHIPEL}, bfloat16", "archipel", W1, {"precision": "bfloat16"})]),
                *([] if fast else [Contender(LOOP, "loop", W1)]),
                Contender(PAIR, "processes", W1),
                Contender(POOLING, "processes", W1, {"pooling_first": True}),
                *([] if fast else [Contender(f"{PAIR}, bfloat16", "processes", W1, {"bfloat16": True})]),
                *([] if fast else [Contender(VMAP, "vmap", W1, {"chunk": 8})]),
                *peers(W1, fast),
            ],
        ),
        "W2": Workload(
            f"{W2.cohort} of {W2.clients:,} clients × an epoch of {W2.examples} examples in batches of {W2.batch}, "
            "logistic regression 784 × 10",
            [
                Contender(ARCHIPEL, "archipel", W2),
                *([] if fast else engines(W2)),
                Contender(LOOP, "loop", W2),
                *([] if fast else [Contender(PAIR, "processes", W2)]),
                Contender(VMAP, "vmap", W2, {"chunk": 100}),
                Contender(HAND, "by-hand", W2),
                *peers(W2, fast),
            ],
        ),
        "W3": Workload(
            f"FedSPM, {W3.clients} clients of {W3.examples:,} examples, C = 2, {W3.steps} + {ROUTING_STEPS} steps",
            [
                Contender(INCREMENTAL, "archipel", replace(W3, method="fedspm-incremental")),
                Contender(EXACT, "archipel", replace(W3, method="fedspm-exact")),
                Contender(PLAIN, "archipel", W3),
                Contender(ROUTER, "archipel", replace(W3, method="router", momentum=0.95, steps=ROUTING_STEPS)),
            ],
        ),
        "W4": Workload("Ditto and pFedMe (R = 3, K = 3) on the clients of W2", list(personal())),
        "W5": Workload(
            f"{W5.cohort:,} of {W5.clients:,} clients × an epoch of {W5.examples} examples in batches of {W5.batch}, "
            "logistic regression",
            [
                Contender(ARCHIPEL, "archipel", W5),
                Contender(LOOP, "loop", replace(W5, stored="floats")),
                Contender(HAND, "by-hand", replace(W5, stored="floats")),
            ],
        ),
        "W6": Workload(
            "FPFC with 300 clients, logistic regression 196 × 10",
            [
                Contender("FPFC", "archipel", replace(W6, method="fpfc")),
                Contender("FedAvg", "archipel", W6),
            ],
        ),
        "population": Workload(
            "the same cohort of 100 from populations of several sizes, clients as in W5",
            [
                Contender(f"{m:,}", "archipel", replace(W5, clients=m, cohort=100))
                for m in ((1000, 100_000) if fast else (1000, 10_000, 100_000))
            ],
            often=5,
        ),
        "cohort": Workload(
            "W2 with cohorts of several sizes",
            [
                contender
                for k in (10, 30, 100, 300, 1000)
                for contender in _three(f"{k}", replace(W2, cohort=k), HAND, "by-hand")
            ],
        ),
        "model": Workload(
            "W2 with a hidden layer of several widths",
            [contender for width in (0, 50, 200, 800) for contender in _three(f"{width}", _wide(width), VMAP, "vmap")],
        ),
        "workers": Workload(
            "W1 with several workers",
            [Contender(f"{n}", "archipel", W1, {"workers": n}) for n in range(1, cores + 1)],
        ),
        "overhead": Workload(
            f"the loop's cost beside the steps: {TINY.cohort} clients × {TINY.local_steps} steps of a model of 170 "
            "parameters",
            [Contender("Archipel, loop", "archipel", TINY, {"engine": "loop"}), Contender(LOOP, "loop", TINY)],
            often=5,
        ),
        "growth": Workload("memory as rounds of W2 go by", [Contender(ARCHIPEL, "archipel", W2)], growth=True),
    }


def engines(work: Work) -> list[Contender]:
    """Return Archipel with every engine of one program, except the wire, which is for tests."""
    return [
        Contender(f"{ARCHIPEL}, {name}", "archipel", work, {"engine": name})
        for name in get_args(EngineName)
        if name not in ("auto", "wire", "distributed")
    ]


def peers(work: Work, fast: bool) -> list[Contender]:
    """Return the other simulators in all ways they can work; the fastest way of each counts."""
    return [
        Contender(peer.title + way, name, work, options)
        for name, peer in PEERS.items()
        for way, options in list(peer.variants.items())[: 1 if fast else None]
    ]


def personal() -> Iterable[Contender]:
    """Yield the contenders of W4."""
    yield Contender("FedAvg", "archipel", W2)
    methods: Mapping[str, Any] = {"Ditto": "ditto", "pFedMe": "pfedme"}
    for title, method in methods.items():
        work = replace(W2, method=method)
        yield Contender(title, "archipel", work)
        yield Contender(f"{title}, loop", "archipel", work, {"engine": "loop"})
        yield Contender(f"{title}, bare loop", "loop", work)


def _wide(width: int) -> Work:
    return replace(W2, network="mlp", hidden=width) if width else W2


def _three(label: str, work: Work, title: str, floor: str) -> list[Contender]:
    """Return Archipel and two floors at one point of a curve."""
    chunk = {"chunk": 10}
    return [
        Contender(f"{ARCHIPEL}: {label}", "archipel", work),
        Contender(f"{LOOP}: {label}", "loop", work),
        Contender(f"{title}: {label}", floor, work, chunk),
    ]
