"""Crossbills in Switzerland: a survey with gaps, for methods that can deal with missing values."""

import csv
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.data.files.guard import readable
from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

YEARS = (1999, 2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007)
VISITS = 3
CROSSBILL = About(
    name="crossbill",
    title="Crossbill",
    size="267 sites, 9 years × 3 visits with gaps",
    clients="bands of elevation",
    citation="Fiske and Chandler (2011). unmarked: an R package. J. Stat. Software 43(10). "
    "Survey by H. Schmid, N. Zbinden and V. Keller, Swiss Ornithological Institute.",
    licence="GPL ≥ 3",
    obtain="Write it out of the R package unmarked: write.csv(crossbill, 'crossbill.csv', row.names = FALSE, na = '')",
    files=("crossbill.csv",),
    folders=("crossbill", "unmarked"),
    # Recorded from the file.
    checksum="9495be2015bfc9995de8cd472838bc4389d4099fa6b1fd960ba9f8429efbc264",
)


def crossbill(data_dir: str | Path | None = None, *, bands: int = 4, verify: bool = True) -> Source:
    """Crossbill: whether it was seen at 267 sites in 9 years × 3 visits, with gaps; clients are bands of elevation.

    Args:
        data_dir: the folder that holds crossbill.csv.
        bands: number of clients: the sites are divided by quantiles of their elevation.
        verify: compare the content with the known one.

    Returns:
        x (267, 9, 3) float32: 1 seen, 0 not, NaN no visit; y (267,) int64, whether it was ever seen. `extra` has
        "elevation" in metres, "forest" in percent, and "date" (267, 9, 3), the day of the visit as the package counts.

    Raises:
        FileNotFoundError: the file is nowhere.
        ValueError: it is damaged, or so many bands that one would be empty.

    Source: Fiske and Chandler (2011), unmarked, J. Stat. Software 43(10).
    """
    folder = CROSSBILL.locate(data_dir)
    table = _read(folder / CROSSBILL.files[0])
    visits = [f"{year % 100:02d}{visit + 1}" for year in YEARS for visit in range(VISITS)]
    x, date = (
        np.stack([table[f"{what}{visit}"] for visit in visits], axis=1).reshape(-1, len(YEARS), VISITS)
        for what in ("det", "date")
    )
    y: NDArray[np.int64] = np.asarray((np.nan_to_num(x) > 0).any(axis=(1, 2)), np.int64)
    elevation = table["ele"]
    client, names = _elevation_bands(elevation, bands)
    return CROSSBILL.source(
        x=torch.from_numpy(x),
        y=codes_tensor(y),
        classes=("never seen", "seen"),
        checksum=CROSSBILL.checked(content_checksum(np.stack(list(table.values())), y), folder, verify),
        kind="series",
        client=codes_tensor(client),
        client_names=names,
        features=tuple(f"visit {visit + 1}" for visit in range(VISITS)),
        extra={
            "elevation": torch.from_numpy(elevation),
            "forest": torch.from_numpy(table["forest"]),
            "date": torch.from_numpy(date),
        },
    )


def _elevation_bands(elevation: NDArray[np.float32], bands: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if bands < 1:
        raise ValueError(f"bands is {bands}; it is the number of clients, 1 or more.")
    cuts = np.quantile(elevation, np.arange(1, bands) / bands)
    client = np.searchsorted(cuts, elevation, side="left")
    held = [elevation[client == band] for band in range(bands)]
    if empty := [band for band, values in enumerate(held) if not len(values)]:
        raise ValueError(
            f"bands is {bands}, but the sites have {len(np.unique(elevation))} elevations only, and band {empty[0]} "
            "would be empty. Take fewer."
        )
    return client, tuple(f"{values.min():.0f}–{values.max():.0f} m" for values in held)


def _read(file: Path) -> dict[str, NDArray[np.float32]]:
    with readable(file, "Fetch it again."), file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    needed = ["ele", "forest"] + [
        f"{what}{year % 100:02d}{visit + 1}" for what in ("det", "date") for year in YEARS for visit in range(VISITS)
    ]
    for number, row in enumerate(rows, start=2):
        if absent := [name for name in needed if row.get(name) is None]:
            raise ValueError(
                f"{file}, line {number} has no {absent[0]}: the file is cut short, or another. Fetch it again."
            )
    if not rows:
        raise ValueError(f"{file} holds no sites. Fetch it again.")
    try:
        return {
            name: np.array([np.nan if row[name] in ("", "NA") else float(row[name]) for row in rows], np.float32)
            for name in needed
        }
    except ValueError as error:
        raise ValueError(f"{file}: {error}. Fetch it again.") from error
