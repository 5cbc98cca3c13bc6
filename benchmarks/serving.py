"""A bundle under load: how soon its server is ready, how fast it answers, and whether its memory stays flat.

    python benchmarks/serving.py

FedSPM with LeNets routes and answers Fashion-MNIST of four sites, after one round: training longer changes the values
of weights, and no duration. ``archipel-serve`` runs in a process of its own, the callers in this one, all on the same
cores.

- *Ready*: from the start of the process to the first answer of ``/health``.
- *Single queries*: ``POST /answer`` with a picture as JSON, 100 a second by an open loop: a query's time counts from
  when it was due, so that a slow answer delays no later query's clock.
- *Batches*: npz archives of 500 pictures, two at a time.
- *Memory*: the resident memory of the server, after the first 5,000 queries and after 100,000 more.

It writes ``docs/results/serving.json``.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import results
from archipel import SGD, FedSPM, Network, classification, fit
from archipel.data import dual_heterogeneity, fashion_mnist
from archipel.models import LeNet
from archipel.serving import export_bundle

RATE, SECONDS, CALLERS = 100, 30, 8
BATCH, BATCHES, TOGETHER = 500, 200, 2


def bundle(folder: Path) -> tuple[Path, np.ndarray[Any, Any]]:
    """Train and export, and return test pictures as well."""
    islands = dual_heterogeneity(fashion_mnist(), clients=4)
    shape = islands.inputs.shape
    router = Network(LeNet(shape), islands.inputs)
    method = FedSPM(
        classification(LeNet(shape), islands), router, components=3, local=SGD(steps=2), routing=SGD(steps=2)
    )
    run = fit(method, islands, rounds=1)
    pictures = np.concatenate([client.test["x"][:500].numpy() for client in islands.clients])
    return export_bundle(run, folder), pictures


class Server:
    """``archipel-serve`` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "archipel_serve", str(folder), "--port", "0"]
        start = time.perf_counter()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(rb"running on http://127.0.0.1:(\d+)", line):
                self.port = int(found[1])
                break
        connection = self.connect()
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        self.ready = time.perf_counter() - start
        threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        assert self.process.stderr is not None
        for _ in self.process.stderr:
            pass

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def memory(self) -> int:
        """Return bytes of resident memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


def post(line: http.client.HTTPConnection, body: bytes, kind: str) -> dict[str, Any]:
    """Ask one question."""
    line.request("POST", "/answer", body, {"Content-Type": kind})
    response = line.getresponse()
    content = response.read()
    assert response.status == 200, content
    found: dict[str, Any] = json.loads(content)
    return found


def singles(server: Server, pictures: np.ndarray[Any, Any]) -> dict[str, float]:
    """Ask single queries at a constant rate, and return percentiles of their durations."""
    bodies = [json.dumps({"x": picture.tolist()}).encode() for picture in pictures[:100]]
    local = threading.local()

    def one(number: int, begin: float) -> float:
        if not hasattr(local, "line"):
            local.line = server.connect()
        due = begin + number / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        post(local.line, bodies[number % len(bodies)], "application/json")
        return time.perf_counter() - due

    def all_of(count: int) -> list[float]:
        begin = time.perf_counter() + 0.1
        with ThreadPoolExecutor(CALLERS) as pool:
            return list(pool.map(lambda number: one(number, begin), range(count)))

    all_of(RATE)  # connections and first passes
    milliseconds = 1000 * np.array(all_of(RATE * SECONDS))
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return {"rate": RATE, "queries": RATE * SECONDS, "p50 ms": round(p50, 2), "p99 ms": round(p99, 2)}


def batches(server: Server, pictures: np.ndarray[Any, Any], count: int) -> float:
    """Ask in batches, and return queries a second."""
    buffer = io.BytesIO()
    np.savez(buffer, x=pictures[:BATCH])
    body = buffer.getvalue()

    def some(_: int) -> None:
        line = server.connect()
        for _ in range(count // TOGETHER):
            post(line, body, "application/npz")
        line.close()

    start = time.perf_counter()
    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(some, range(TOGETHER)))
    return BATCH * TOGETHER * (count // TOGETHER) / (time.perf_counter() - start)


def main() -> None:
    """Measure, print and write."""
    given = results.parsed(results.parser(__doc__))
    with tempfile.TemporaryDirectory() as place:
        folder, pictures = bundle(Path(place) / "bundle")
        starts = []
        for _ in range(5):
            server = Server(folder)
            starts.append(server.ready)
            server.stop()
        server = Server(folder)
        try:
            found: dict[str, Any] = {"load before": os.getloadavg()[0], "ready s": [round(s, 2) for s in starts]}
            found["single queries"] = singles(server, pictures)
            batches(server, pictures, 10)
            before = server.memory()
            rate = batches(server, pictures, BATCHES)
            found["batches"] = {"queries": BATCH, "together": TOGETHER, "queries a second": round(rate)}
            found["memory MB"] = {"before": before >> 20, f"after {BATCH * BATCHES:,} queries": server.memory() >> 20}
        finally:
            server.stop()
    print(json.dumps(found, indent=1))
    results.write(given.out / "serving.json", found)


if __name__ == "__main__":
    main()
