"""The command ``archipel-serve``: serve a bundle, or make an API key."""

import argparse
import hashlib
import json
import logging
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECONDS_TO_END = 10
"""After a signal, requests in progress have this long to end."""


def parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    found = argparse.ArgumentParser("archipel-serve", description="Serve a bundle of archipel.")
    found.add_argument("bundle", type=Path, help="the folder that `archipel export` wrote")
    found.add_argument("--host", default="127.0.0.1", help="the address to listen at; default: this machine alone")
    found.add_argument("--port", type=int, default=8080, help="0 chooses a free one; default: 8080")
    found.add_argument("--keys", type=Path, help="a file of API keys: a name and a key's SHA-256 a line")
    found.add_argument("--tls-cert", type=Path, help="the certificate (PEM)")
    found.add_argument("--tls-key", type=Path, help="its private key (PEM)")
    found.add_argument("--trust", type=Path, help="the Ed25519 public key (PEM) that must have signed the bundle")
    found.add_argument("--rate", type=float, help="requests a second of each caller; default: without a limit")
    found.add_argument("--sites", type=Path, help="a JSON file of the sites' own servers, which answer then")
    found.add_argument("--decisions", type=Path, help="a file that each decision of the router is added to")
    found.add_argument("--decisions-key", type=Path, help="a secret of 16 bytes or more, which hashes queries in it")
    found.add_argument("--store-queries", action="store_true", help="keep the queries in that file as well")
    found.add_argument("--threads", type=int, default=1, help="of a forward pass; default: 1")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a bundle until SIGTERM or Ctrl-C."""
    given = parser().parse_args(arguments)
    try:
        serve(given)
    except (ValueError, OSError) as error:
        raise SystemExit(f"archipel-serve: {error}") from error


def serve(given: argparse.Namespace) -> None:
    """Serve as the options say.

    Raises:
        ValueError: another machine could connect, and there are no API keys or no TLS.
        BundleError: the bundle can't be served.
    """
    alone = given.host in LOOPBACK
    tls = given.tls_cert is not None and given.tls_key is not None
    if (given.tls_cert is None) != (given.tls_key is None):
        raise ValueError("--tls-cert and --tls-key belong together; give both.")
    if not alone and not (tls and given.keys):
        lacking = " and ".join(
            what for what, there in (("--keys", given.keys), ("--tls-cert with --tls-key", tls)) if not there
        )
        raise ValueError(f"other machines can connect to {given.host}: give {lacking}, or listen at 127.0.0.1.")
    try:
        import uvicorn

        from archipel_serve.models import Models
        from archipel_serve.server.access import read_keys
        from archipel_serve.server.app import Settings, create_app
        from archipel_serve.server.forwarding import read_sites
        from archipel_serve.watching.decisions import DecisionLog
    except ImportError as error:
        raise ValueError(f'serving needs more packages ({error}): pip install "archipel-serve[server]".') from error
    keys = read_keys(given.keys) if given.keys else {}
    models = Models(given.bundle, given.trust, given.threads)
    sites = read_sites(given.sites, models.manifest.names) if given.sites else {}
    decisions = None
    if given.decisions:
        if given.decisions_key is None:
            raise ValueError("--decisions needs --decisions-key, a file with a secret that hashes the queries.")
        decisions = DecisionLog(given.decisions, given.decisions_key, models, given.store_queries)
    app = create_app(models, Settings(keys=keys, rate=given.rate, sites=sites, decisions=decisions))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn.access").disabled = True
    config = uvicorn.Config(
        app,
        host=given.host,
        port=given.port,
        log_config=None,
        access_log=False,
        ssl_certfile=given.tls_cert,
        ssl_keyfile=given.tls_key,
        timeout_graceful_shutdown=SECONDS_TO_END,
        server_header=False,
    )
    uvicorn.Server(config).run()


def key(arguments: Sequence[str] | None = None) -> None:
    """Make an API key: print it, and the line for the file of keys."""
    found = argparse.ArgumentParser("archipel-serve-key", description="Make an API key.")
    found.add_argument("name", help="whose key it is, one word")
    name = found.parse_args(arguments).name
    if len(name.split()) != 1:
        raise SystemExit("archipel-serve-key: the name is one word.")
    made = secrets.token_urlsafe(32)
    print(json.dumps({"key": made, "line": f"{name} {hashlib.sha256(made.encode()).hexdigest()}"}, indent=1))
