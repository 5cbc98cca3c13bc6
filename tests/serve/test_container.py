"""The container's files: what they promise, and their steps in a plain folder instead of a container."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from archipel_serve.server.command import parser

SERVE = Path(__file__).resolve().parents[2] / "serve"
KNOWN = {"FROM", "RUN", "COPY", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions():
    """The Dockerfile's instructions, each with its text."""
    text = re.sub(r"\\\n", "", (SERVE / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def the(kind):
    (found,) = [text for name, text in instructions() if name == kind]
    return found


def test_the_image_is_slim_pinned_and_not_roots():
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) <= KNOWN
    assert names[0] == "FROM"
    assert re.fullmatch(r"debian:[a-z]+-slim", the("FROM"))
    assert the("USER").isdecimal()
    assert int(the("USER")) > 0
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    for text in (text for name, text in found if name == "RUN"):
        assert "apt-get install" not in text or ("--no-install-recommends" in text and "rm -rf /var/lib/apt" in text)
        assert "pip install" not in text or "--no-cache-dir" in text
        assert subprocess.run(["sh", "-n", "-c", text], timeout=30, check=False).returncode == 0
    for kind in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(the(kind)), list)  # a list runs without a shell, which would keep signals back


def test_the_services_are_a_router_and_three_sites_that_write_nothing():
    content = yaml.safe_load((SERVE / "compose.yaml").read_text())
    assert set(content["services"]) == {"router", "lyon", "nice", "brest"}
    entry = json.loads(the("ENTRYPOINT"))[1:]
    for name, service in content["services"].items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert all(volume.endswith(":ro") for volume in service["volumes"])
        assert all(f"/{name}:" in volume for volume in service["volumes"])
        # The command that the service runs is one that archipel-serve understands, with keys and TLS.
        given = parser().parse_args([*entry, *service.get("command", json.loads(the("CMD")))])
        assert given.keys
        assert given.tls_cert
        assert given.tls_key
        assert bool(given.sites) == (name == "router")
        assert bool(service.get("ports")) == (name == "router")


def test_the_steps_make_a_server_in_a_plain_folder(router_bundle, tmp_path):
    """Copy what the wheel holds, as the Dockerfile installs it, and run the entry point with keys and TLS."""
    (step,) = [text for name, text in instructions() if name == "RUN" and "pip install" in text]
    assert "/source[server]" in shlex.split(step)
    project = tomllib.loads((SERVE / "pyproject.toml").read_text())
    (package,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    installed = shutil.copytree(SERVE / package, tmp_path / "installed" / Path(package).name).parent
    entry, *options = json.loads(the("ENTRYPOINT"))
    module, function = project["project"]["scripts"][Path(entry).name].split(":")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-keyout", secrets / "key.pem", "-out", secrets / "cert.pem"]
    subprocess.run(made, check=True, timeout=30, capture_output=True)
    (secrets / "keys.txt").write_text(f"ward {hashlib.sha256(b'sesame').hexdigest()}\n")
    words = [*options, *json.loads(the("CMD"))]
    words = [word.replace("/secrets", str(secrets)).replace("/bundle", str(router_bundle)) for word in words]
    words[words.index("--port") + 1] = "0"
    code = f"import sys; sys.path.insert(0, {str(installed)!r}); from {module} import {function}; {function}()"
    plain = tmp_path / "plain"
    plain.mkdir(mode=0o500)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", code, *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=plain)
    try:
        lines = iter(process.stderr.readline, b"")
        assert any(b"running on https://0.0.0.0" in line for line in lines)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stderr.close()
    assert not any(plain.iterdir())
