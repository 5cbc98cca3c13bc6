"""A bundle's manifest: what the bundle holds, the hash of each file, and a signature by Ed25519."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from archipel_serve.preparation import Preparation

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FORMAT = 1
"""Version of the bundle's layout."""
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"


class BundleError(ValueError):
    """A bundle that can't be served: damaged, of another format, or not signed by the trusted key."""


@dataclass(frozen=True)
class Manifest:
    """What a bundle holds.

    Args:
        method: the algorithm's name.
        created: date and time, ISO 8601.
        versions: of the packages that made the bundle.
        preparation: how raw queries are prepared.
        classes: names of the classes in the order of their codes; ``None`` for a regression.
        outputs: K classes, or the number of a regression's targets.
        names: of all sites.
        sizes: training examples of each site.
        prior: ρ_i, the shares of the sites among queries that the router's posterior contains.
        site: the site whose own bundle this is; ``None``: of all.
        features: what the embedding graph gives, by name, with ``"dtype"`` and ``"shape"`` of a query's; empty where
            there is no such graph.
        graphs: file of each graph: ``"embed"``, ``"router"``, ``"global"``, and ``"answer/0"``, ``"answer/1"``, …
        routes_features: whether the router takes the features; else it takes raw queries.
        missing: why sites have no answer model here, by name.
        files: SHA-256 of each file, by its path.
    """

    method: str
    created: str
    versions: dict[str, str]
    preparation: Preparation
    classes: tuple[str, ...] | None
    outputs: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    prior: tuple[float, ...]
    site: str | None
    features: dict[str, dict[str, Any]]
    graphs: dict[str, str]
    routes_features: bool
    missing: dict[str, str]
    files: dict[str, str]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Manifest":
        """Return the manifest that :meth:`to_json` wrote.

        Raises:
            BundleError: another format, or entries that are missing.
        """
        if content.get("format") != FORMAT:
            raise BundleError(
                f"the bundle has format {content.get('format')!r}; this version of archipel-serve reads format "
                f"{FORMAT}. Export it again, or serve it with the version that wrote it"
            )
        try:
            given = {name: content[name] for name in cls.__dataclass_fields__}
            given["preparation"] = Preparation(**given["preparation"])
            for name in ("names", "sizes", "prior"):
                given[name] = tuple(given[name])
            given["classes"] = None if given["classes"] is None else tuple(given["classes"])
            return cls(**given)
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{MANIFEST} is incomplete ({error})") from error

    def to_json(self) -> dict[str, Any]:
        """Return the manifest in JSON's types."""
        return {"format": FORMAT} | asdict(self)


def write_manifest(folder: Path, content: Manifest, key: Path | None = None) -> None:
    """Write the manifest with the hashes of all files in the folder, and sign it if a key is given.

    Args:
        folder: of the bundle, complete but for its manifest.
        content: what it holds; its ``files`` are filled in here.
        key: a file with an Ed25519 private key (PEM, without a password).

    Raises:
        ValueError: the file holds no such key.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, SIGNATURE))
    hashes = {path.relative_to(folder).as_posix(): digest(path) for path in files}
    data = (json.dumps(content.to_json() | {"files": hashes}, indent=1) + "\n").encode()
    (folder / MANIFEST).write_bytes(data)
    if key is not None:
        (folder / SIGNATURE).write_bytes(_private(key).sign(data))


def read_manifest(folder: Path, trust: Path | None = None) -> Manifest:
    """Read a bundle's manifest and check all its files.

    Args:
        folder: of the bundle.
        trust: a file with the Ed25519 public key (PEM) that must have signed it; ``None``: signatures aren't looked at.

    Raises:
        BundleError: a sentence that says what is wrong with the bundle.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise BundleError(
            f"{folder} is no bundle: it has no {MANIFEST}. Make one with `archipel export RUN --out BUNDLE`."
        ) from error
    if trust is not None:
        _verify(folder, data, trust)
    try:
        content = json.loads(data)
        found = Manifest.from_json(content if isinstance(content, dict) else {})
    except (BundleError, ValueError) as error:
        raise BundleError(f"{folder} can't be served: {error}.") from error
    for name, expected in found.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not (folder / name).is_file():
            raise BundleError(f"{folder} can't be served: its file {name} is missing. Export it again.")
        if digest(folder / name) != expected:
            raise BundleError(f"{folder} can't be served: {name} isn't the file that was exported. Export it again.")
    if strays := [name for name in found.graphs.values() if name not in found.files]:
        raise BundleError(f"{folder} can't be served: {strays[0]} has no hash. Export it again.")
    return found


def digest(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _verify(folder: Path, data: bytes, trust: Path) -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        signature = (folder / SIGNATURE).read_bytes()
    except OSError as error:
        raise BundleError(
            f"{folder} isn't signed, and only bundles signed by {trust} are trusted. Export it with --sign KEY."
        ) from error
    try:
        _public(trust).verify(signature, data)
    except InvalidSignature as error:
        raise BundleError(
            f"{folder} isn't signed by the key of {trust}, or was changed since. Don't serve it; get it again."
        ) from error


def _private(file: Path) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} holds no private key: make one with `openssl genpkey -algorithm ed25519`.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{file} holds another kind of key: make one with `openssl genpkey -algorithm ed25519`.")
    return key


def _public(file: Path) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(file.read_bytes())
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} holds no public key: `openssl pkey -in KEY -pubout` writes it.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{file} holds no Ed25519 key: `openssl pkey -in KEY -pubout` writes it.")
    return key
