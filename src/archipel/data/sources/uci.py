"""Two data sets of the UCI repository with natural clients: heart disease by hospital, activities by person."""

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.data.files.arrays import read_npz
from archipel.data.files.guard import readable
from archipel.data.sources.source import About, Source, codes_tensor, content_checksum

Missing = Literal["keep", "impute-median", "drop-columns"]
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FEATURES = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
KEPT = 10  # the columns that most hospitals filled in; slope, ca and thal are left out
CHOLESTEROL = FEATURES.index("chol")
HEART_DISEASE = About(
    name="heart-disease",
    title="Heart disease",
    size="920 patients, 13 features, 2 classes",
    clients="4 hospitals",
    citation="Janosi, Steinbrunn, Pfisterer and Detrano (1989). Heart disease. UCI repository, doi:10.24432/C52P4X.",
    licence="CC BY 4.0",
    obtain="Get the four processed.*.data files at https://archive.ics.uci.edu/dataset/45/heart+disease",
    files=("processed.cleveland.data",),
    folders=("heart-disease",),
    # Recorded from the files; UCI publishes none, for HAPT neither.
    checksum="1a42434d685f0cf812b64ae1738dd1a42f317fd362e0c8ff309dd0808b31d4ba",
)
HAPT = About(
    name="hapt",
    title="HAPT",
    size="10,017 windows of 128×6, 6 classes",
    clients="30 people",
    citation="Reyes-Ortiz et al. (2015). Human activities and postural transitions by smartphone. UCI repository.",
    licence="CC BY 4.0",
    obtain="Make hapt-windows.npz out of UCI's HAPT (x, y, user, windows of 128 samples, rows by user)",
    files=("hapt-windows.npz",),
    folders=("hapt",),
    checksum="b6768d0486542b41f53e6d2d824e9074314cc7b5e9ca2d4928f0f9520c594f0c",
)
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")


def heart_disease(data_dir: str | Path | None = None, *, missing: Missing = "keep", verify: bool = True) -> Source:
    """Heart disease: 920 patients of four hospitals, 13 features, diseased or not.

    The label is 0 for healthy, 1 for any of the levels 1–4, which stay in `extra["level"]`. What is missing ("?", and a
    cholesterol of 0, which is impossible) is NaN and recorded in `extra["missing"]`. Networks can't use NaN, and the
    right remedy depends on the question:

    - "keep": NaN stays, for a method that accepts it;
    - "impute-median": NaN becomes the median over all hospitals, since one hospital measured no cholesterol. Test data
      contribute to it: for a strict separation, impute otherwise;
    - "drop-columns": without slope, ca and thal, and then without patients who have a "?" left: 303, 261, 46 and 130
      patients with ten features, as FLamby's Fed-Heart-Disease has it. A cholesterol of 0 stays 0 here, as it does
      there; otherwise no Swiss patient would be left.

    Args:
        data_dir: the folder that holds the four files processed.*.data, or "heart-disease" with them.
        missing: what to do about missing values.
        verify: compare the content with the known one.

    Returns:
        x (920, 13) float32, or (740, 10), y int64; rows ordered by hospital.

    Raises:
        FileNotFoundError: files aren't there.
        ValueError: a line can't be read; the message names it.

    Source: Detrano et al. (1989), Am. J. Cardiology 64; ten features as in du Terrail et al. (2022), FLamby, NeurIPS.
    """
    if missing not in ("keep", "impute-median", "drop-columns"):
        raise ValueError(f"missing is {missing!r}; it is one of keep, impute-median, drop-columns.")
    folder = HEART_DISEASE.locate(data_dir)
    tables = [_read_hospital(folder / f"processed.{hospital}.data") for hospital in HOSPITALS]
    rows = np.concatenate(tables)
    x, level = rows[:, :-1].astype(np.float32), rows[:, -1].astype(np.int64)
    client = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    checksum = HEART_DISEASE.checked(content_checksum(x, level, client), folder, verify)
    features: tuple[str, ...] = FEATURES
    gaps = np.isnan(x) | ((x == 0) & (np.arange(len(FEATURES)) == CHOLESTEROL))
    if missing == "drop-columns":
        kept = ~np.isnan(x[:, :KEPT]).any(axis=1)
        x, level, client, gaps = x[kept, :KEPT], level[kept], client[kept], gaps[kept, :KEPT]
        features = FEATURES[:KEPT]
    else:
        x[gaps] = np.nan
        if missing == "impute-median":
            x = np.where(gaps, np.nanmedian(x, axis=0), x)
    return HEART_DISEASE.source(
        x=torch.from_numpy(x),
        y=codes_tensor(level > 0),
        classes=("healthy", "diseased"),
        checksum=checksum,
        kind="table",
        client=codes_tensor(client),
        client_names=HOSPITALS,
        features=features,
        extra={"level": codes_tensor(level), "missing": torch.from_numpy(gaps)},
    )


def hapt(data_dir: str | Path | None = None, *, verify: bool = True) -> Source:
    """HAPT: 10,017 windows of 128 smartphone measurements in 6 channels, six activities of 30 people.

    A window lasts 2.56 s and shares its first half with the one before. A random split of a person's windows therefore
    tests on halves that were trained on, and is optimistic; a strict test holds out whole people.

    Args:
        data_dir: the folder that holds hapt-windows.npz.
        verify: compare the content with the known one.

    Returns:
        x (10017, 128, 6) float16, acceleration (g) and rotation (rad/s) along three axes, y (10017,) int64; rows are
        ordered by person.

    Raises:
        FileNotFoundError: the file is nowhere.
        ValueError: it is damaged, or its parts don't fit together.

    Source: Reyes-Ortiz et al. (2015), Transition-aware human activity recognition, Neurocomputing 171.
    """
    folder = HAPT.locate(data_dir)
    found = read_npz(folder / HAPT.files[0], ("x", "y", "user"))
    x, y, user = found["x"], found["y"], found["user"]
    if x.ndim != 3 or x.dtype.kind != "f" or not len(x) == len(y) == len(user):
        raise ValueError(
            f"{folder / HAPT.files[0]} doesn't hold HAPT: x is {x.dtype} {x.shape}, with {len(y)} labels and "
            f"{len(user)} users. Needed are (n, time, channels) floats, one label and one user a window."
        )
    people, client = np.unique(user, return_inverse=True)
    return HAPT.source(
        x=torch.from_numpy(x),
        y=codes_tensor(y),
        classes=ACTIVITIES,
        checksum=HAPT.checked(content_checksum(x, y, client), folder, verify),
        kind="series",
        client=codes_tensor(client),
        client_names=tuple(f"person-{number}" for number in people),
        features=tuple(f"{what} {axis}" for what in ("acceleration", "rotation") for axis in "xyz"),
    )


def _read_hospital(file: Path) -> NDArray[np.float64]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} isn't there. {HEART_DISEASE.obtain}.")
    rows = []
    with readable(file, "Fetch it again."):
        lines = list(csv.reader(file.read_text().splitlines()))
    for number, line in enumerate(lines, start=1):
        try:
            row = [np.nan if value.strip() == "?" else float(value) for value in line]
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}. Fetch it again.") from error
        if len(row) != len(FEATURES) + 1 or row[-1] not in range(5):
            raise ValueError(
                f"{file}, line {number} holds {','.join(line)!r}: needed are {len(FEATURES)} features and a label "
                "from 0 to 4. Fetch it again."
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"{file} is empty. Fetch it again.")
    return np.array(rows)
