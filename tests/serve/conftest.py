"""Bundles, and servers of them on loopback that end with their tests."""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from archipel import SGD, FedDRM, Federation, Local, classification, fit
from archipel.serving import export_bundle

SECONDS = 60
"""A server that isn't ready by then, or hangs, fails its test."""


class Server:
    """A server in a process of its own."""

    def __init__(self, bundle, *options):
        command = [sys.executable, "-m", "archipel_serve", str(bundle), "--port", "0", *map(str, options)]
        self.log = bytearray()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
        found = None
        for line in self.process.stderr:
            self.log += line
            if found := re.search(rb"running on (https?)://[^:]*:(\d+)", line):
                break
        assert found, self.log.decode()
        self.scheme, self.port = found[1].decode(), int(found[2])
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        os.set_blocking(self.process.stderr.fileno(), False)

    def logged(self):
        """All that it has logged."""
        while chunk := os.read(self.process.stderr.fileno(), 1 << 20) if self._waiting() else b"":
            self.log += chunk
        return self.log.decode()

    def _waiting(self):
        return bool(select.select([self.process.stderr], [], [], 0)[0])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def ask(self, path, body=None, headers=None, connection=None):
        """Return status and content of one request; a body that isn't bytes is sent as JSON."""
        line = connection or self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        line.request("GET" if body is None else "POST", path, data, headers or {})
        response = line.getresponse()
        content = response.read()
        if connection is None:
            line.close()
        kind = response.getheader("content-type", "")
        return response.status, json.loads(content) if kind.startswith("application/json") else content

    def memory(self):
        """Return bytes of resident memory."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, how=signal.SIGTERM):
        """End it, and return its exit status."""
        if self.process.stderr.closed:
            return self.process.returncode
        if self.process.poll() is None:
            self.process.send_signal(how)
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.logged()
            time.sleep(0.01)
        if self.process.poll() is None:
            self.process.kill()
        status = self.process.wait()
        self.logged()
        self.process.stderr.close()
        return status


@pytest.fixture(scope="session")
def serving():
    """Starts servers; ends them with the block."""

    @contextlib.contextmanager
    def started(bundle, *options):
        server = Server(bundle, *options)
        try:
            yield server
        finally:
            server.stop()

    return started


@pytest.fixture(scope="session")
def router_run(uneven):
    """A run with a router and three features."""
    encoder = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    return fit(FedDRM(classification(encoder, uneven), SGD(lr=0.1, steps=5, batch=5), weight=0.3), uneven, rounds=3)


@pytest.fixture(scope="session")
def router_bundle(router_run, tmp_path_factory):
    return export_bundle(router_run, tmp_path_factory.mktemp("bundles") / "router")


@pytest.fixture(scope="session")
def steep_bundle(uneven, tmp_path_factory):
    """Models whose answers overflow long before float32 does."""

    class Steep(nn.Module):
        def forward(self, x):
            return x.pow(9) - x.pow(7)

    run = fit(Local(classification(Steep(), uneven), SGD(lr=1e-9, steps=1)), uneven, rounds=1)
    return export_bundle(run, tmp_path_factory.mktemp("bundles") / "steep")


@pytest.fixture(scope="session")
def image_run():
    """A run without a router, on grey images of 8 × 8 pixels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (3, 20, 1, 8, 8), generator=generator, dtype=torch.uint8)
    islands = Federation.from_arrays([(images, torch.arange(20) % 3) for images in x], test=0.2)
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())
    return fit(Local(classification(encoder, islands), SGD(lr=0.1, steps=2, batch=5)), islands, rounds=1)


@pytest.fixture(scope="session")
def image_bundle(image_run, tmp_path_factory):
    return export_bundle(image_run, tmp_path_factory.mktemp("bundles") / "images")
