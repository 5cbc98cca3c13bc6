"""Federations in folders: safetensors and JSON, from which nothing is executed, replaced in one step.

A folder holds ``federation.json`` (names, inputs, classes, the truth's structure, the fingerprint), a file
``clients/000000.safetensors`` for each client, and ``truth.safetensors`` with everything that only evaluation may see.
A client's file can therefore be given to that client. Tensors are memory-mapped: loading reads headers only.
"""

import json
import math
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archipel.data.client import Client, Columns, fingerprint
from archipel.data.inputs import Inputs

FORMAT = 1
ABOUT = "federation.json"
TENSOR, TUPLE = "$tensor", "$tuple"


def write_federation(
    folder: str | Path,
    name: str,
    clients: Sequence[Client],
    inputs: Inputs,
    classes: tuple[str, ...] | None,
    truth: Mapping[str, Any],
) -> None:
    """Write a federation's parts; an interruption at any moment leaves the old federation or the new one whole.

    Args:
        folder: is made, or replaced if it holds a federation.
        name: the federation's.
        clients: its clients.
        inputs: its preprocessing.
        classes: the classes' names; None for a regression.
        truth: how the data were made.

    Raises:
        FileExistsError: the folder holds something else.
        TypeError: the truth holds something that is neither a tensor nor plain data, by name.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / ABOUT).exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} holds something that isn't a federation. Give another folder.")
    tensors: dict[str, Tensor] = {}
    about = {
        "format": FORMAT,
        "name": name,
        "fingerprint": fingerprint(clients),
        "classes": classes,
        "inputs": asdict(inputs),
        "truth": _plain(truth, "truth", tensors),
        "clients": [{"name": client.name, "splits": list(client.splits)} for client in clients],
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    new.mkdir()  # as open to others as the system's mask says,
    try:
        if folder.exists():
            new.chmod(stat.S_IMODE(folder.stat().st_mode))  # or as the folder was
        (new / "clients").mkdir()
        for i, client in enumerate(clients):
            _write(_flat(client.splits), new / _client_file(i))
            tensors |= {f"client/{i}/{name}": values for name, values in _flat(client.truth).items()}
        _write(tensors, new / "truth.safetensors")
        (new / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
        old = _old(folder)
        if folder.exists():  # if not, an earlier save was interrupted, and the old one is all there is
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


Parts = tuple[str, tuple[Client, ...], Inputs, tuple[str, ...] | None, dict[str, Any]]


def read_federation(folder: str | Path, *, verify: bool = False) -> Parts:
    """Read a federation's name, clients, inputs, classes and truth; arrays stay in the files until they are used.

    Args:
        folder: written by `write_federation`.
        verify: read everything and compare the fingerprint.

    Raises:
        FileNotFoundError: there is no federation.
        ValueError: a file that is damaged, cut short or changed, by name; a format of another version.
    """
    folder = Path(folder)
    if not folder.exists() and _old(folder).exists():
        folder = _old(folder)  # a save was interrupted between its two renames: the old one is whole
    if not (folder / ABOUT).exists():
        raise FileNotFoundError(f"{folder} holds no federation: it has no file {ABOUT}.")
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"it has format {about['format']}; this version of archipel reads {FORMAT}")
        truth = _read(folder / "truth.safetensors")
        clients = []
        for i, known in enumerate(about["clients"]):
            splits = _nested(_read(folder / _client_file(i)))
            prefix = f"client/{i}/"
            mine = {name.removeprefix(prefix): values for name, values in truth.items() if name.startswith(prefix)}
            columns = {split: splits[split] for split in known["splits"]}
            clients.append(
                Client(known["name"], columns["train"], columns["test"], columns.get("validation"), _nested(mine))
            )
        classes = None if about["classes"] is None else tuple(about["classes"])
        inputs = Inputs(**about["inputs"])
        parts: Parts = about["name"], tuple(clients), inputs, classes, _rich(about["truth"], truth)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / ABOUT} is damaged ({type(error).__name__}: {error}). Save it again.") from error
    except ValueError as error:
        raise ValueError(f"{folder} can't be read: {error}.") from error
    if verify and (found := fingerprint(clients)) != about["fingerprint"]:
        raise ValueError(f"{folder} was changed: its data have the fingerprint {found}, not {about['fingerprint']}.")
    return parts


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _client_file(i: int) -> str:
    return f"clients/{i:06d}.safetensors"


def _write(tensors: dict[str, Tensor], file: Path) -> None:
    # Views are copied out, a client at a time: safetensors refuses tensors that share memory.
    save_file(
        {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}, file
    )


def _read(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 — it isn't a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is missing or damaged ({error}). Save the federation again") from error


def _flat(splits: Mapping[str, Columns]) -> dict[str, Tensor]:
    return {f"{split}/{name}": values for split, columns in splits.items() for name, values in columns.items()}


def _nested(flat: Mapping[str, Tensor]) -> dict[str, Columns]:
    splits: dict[str, Columns] = {}
    for name, values in flat.items():
        split, _, column = name.partition("/")
        splits.setdefault(split, {})[column] = values
    return splits


def _plain(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """Turn the truth into JSON's types; tensors go to a file and leave their name, tuples stay tuples."""
    if isinstance(value, Tensor):
        tensors[where] = value
        return {TENSOR: where}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{where} has keys that aren't text, which JSON can't hold. Name them.")
        return {key: _plain(entry, f"{where}/{key}", tensors) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        entries = [_plain(entry, f"{where}/{i}", tensors) for i, entry in enumerate(value)]
        return {TUPLE: entries} if isinstance(value, tuple) else entries
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(
        f"{where} is {value!r}; a federation's truth is saved as tensors, text, finite numbers, lists, dicts."
    )


def _rich(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_rich(entry, tensors) for entry in value]
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[value[TENSOR]]
        if value.keys() == {TUPLE}:
            return tuple(_rich(entry, tensors) for entry in value[TUPLE])
        return {key: _rich(entry, tensors) for key, entry in value.items()}
    return value
