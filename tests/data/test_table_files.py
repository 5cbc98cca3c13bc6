"""Tables in files: names, gaps and indices are told from values, and damage and sizes get a sentence in time."""

import numpy as np
import pandas as pd
import pytest

from archipel.data.files import tables
from archipel.data.files.clients import read_examples
from archipel.data.files.tables import read_parquet, read_text
from archipel.data.inputs import Inputs
from archipel.experiments.queries import read_queries


def write(tmp_path, text, name="a.csv"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / name


def test_columns_names_gaps_and_text(tmp_path):
    table = read_text(write(tmp_path, "\ufeffage,sbp,ill\n63,1e2,yes\nNA,,no\n"))
    assert list(table.columns) == ["age", "sbp", "ill"]
    np.testing.assert_array_equal(table.numbers(["age", "sbp"]), [[63, 100], [np.nan, np.nan]])
    assert table.columns["ill"].tolist() == ["yes", "no"]
    with pytest.raises(ValueError, match=r"a\.csv, line 2: ill is 'yes', which isn't a number"):
        table.numbers(["ill"])


def test_pandas_names_of_numbers_are_no_example(tmp_path):
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(20, 3))
    pandas.DataFrame(x).to_csv(tmp_path / "a.csv", index=False)
    examples = read_examples(tmp_path / "a.csv")
    np.testing.assert_allclose(examples.x, x, rtol=1e-15)
    assert examples.features == ("0", "1", "2")


@pytest.mark.parametrize("text", ["0,1\n2,3\n", "0\n1\n0\n", "0,1,2\n0.5,1,2.5\n"])
def test_a_first_row_that_could_be_either_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="names of columns that are numbers, or the first example"):
        read_text(write(tmp_path, text))


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "0,1\n", "0,2\n0.5,1.5\n", "0.0,1.0\n2.5,1.5\n", "NA,\n1,2\n"])
def test_examples_are_no_names(tmp_path, text):
    table = read_text(write(tmp_path, text))
    assert list(table.columns) == ["x0", "x1"]
    assert len(table.columns["x0"]) == text.count("\n")
    assert read_examples(tmp_path / "a.csv").features == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a\n0,1\n", "column 0 has no name"),
        ("a,b,a\n1,2,3\n", "two columns 'a'"),
        ("a;b\n1,5;2\n", "semicolons"),
        ("a\tb\n1\t2\n", r"tabs between its values\. Write commas, or call it \.tsv"),
        ("a,b\n1\n", "line 2 has 1 values, the first line has 2"),
        ("a,b\n1_2,3\n", "a is '1_2', which isn't a number"),
        ("", "is empty"),
        ("a,b\n", "no examples"),
        ("é,b\n1,2\n".encode("latin-1"), "can't be read.*UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "can't be read.*UTF-8"),
        ("a,b\n1,\0\n", "isn't a number|can't be read"),
        ('a,b\n1,"' + "x" * 200_000 + '"\n', "field larger than field limit"),
        ('a,b\n1,"' + "x" * 2_000 + '"\n', "line 2: a cell has 2,000 characters"),
    ],
)
def test_what_would_be_misread_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=rf"(?s)a\.csv.*({message})"):
        read_examples(write(tmp_path, text))


def test_tabs_separate_tsv(tmp_path):
    examples = read_examples(write(tmp_path, "age\tsbp\n63\t145\n67\t160\n", "a.TSV"))
    assert examples.features == ("age", "sbp")
    assert examples.x.tolist() == [[63, 145], [67, 160]]


def test_large_text_is_read_and_larger_text_is_refused(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    row = ",".join(f"{value:.6f}" for value in rng.normal(size=100))
    long = write(tmp_path, f"{row}\n" * 10_000)  # 9 MB
    wide = write(tmp_path, "\n".join([",".join(f"c{j}" for j in range(90_000)), ",".join(["1.5"] * 90_000)]), "b.csv")
    assert read_examples(long).x.shape == (10_000, 100)
    assert read_examples(wide).x.shape == (1, 90_000)
    with pytest.raises(ValueError, match=r"has 100,001 columns; at most 100,000 are read.* transpose it"):
        read_text(write(tmp_path, ",".join(["1.5"] * 100_001)))
    monkeypatch.setattr(tables, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="text is read up to 1,000"):
        read_text(long)


@pytest.mark.parametrize("name", [None, "patient"])
def test_the_index_of_pandas_is_no_feature(tmp_path, name):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"age": [60, 70], "sbp": [1.5, 2.5]}, index=pandas.Index([7, 9], name=name))
    frame.to_parquet(tmp_path / "a.parquet")
    examples = read_examples(tmp_path / "a.parquet")
    assert examples.features == ("age", "sbp")
    assert examples.x.tolist() == [[60, 1.5], [70, 2.5]]


def test_parquet_gaps_damage_and_bombs(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": [1, None], "b": [True, False], "c": ["x", None]}), file)
    table = read_parquet(file)
    np.testing.assert_array_equal(table.numbers(["a", "b"]), [[1, 1], [np.nan, 0]])
    assert table.columns["c"].tolist() == ["x", ""]
    whole = file.read_bytes()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged if seed % 2 else whole[: rng.integers(len(whole))])
        try:
            read_parquet(file)
        except ValueError as error:
            assert str(error).startswith(str(file))  # noqa: PT017 — no error is fine too
    column = pyarrow.array(np.zeros(40_000_000, np.int64)).dictionary_encode()
    parquet.write_table(pyarrow.table({"a": column}), file, compression="zstd")
    assert file.stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=r"a\.parquet can't be read: it holds .* and unpacks to 320,000,000"):
        read_parquet(file)


def test_queries_in_tables_are_taken_by_name(tmp_path):
    inputs = Inputs("table", (2,), 1.0, (0.0, 0.0), (1.0, 1.0), features=("age", "sbp"))
    file = write(tmp_path, "age,sbp\n63,145\n67,160\n")
    queries = read_queries([file], inputs)
    assert queries.x.tolist() == [[63, 145], [67, 160]]
    assert queries.names == [f"{file}[0]", f"{file}[1]"]
    for text, message in [
        ("sbp,age\n145,63\n", "has the columns sbp, age, and the federation has age, sbp, in another order"),
        ("age,sbp,ill\n63,145,1\n", "also has ill"),
        ("age,bmi\n63,25\n", "lacks sbp and also has bmi"),
    ]:
        with pytest.raises(ValueError, match=rf"a\.csv doesn't fit the run: x {message}"):
            read_queries([write(tmp_path, text)], inputs)
    for labels in ("1", "ill"):
        assert read_queries([write(tmp_path, f"age,sbp,y\n63,145,{labels}\n")], inputs).x.tolist() == [[63, 145]]
    with pytest.raises(ValueError, match="x lacks age, sbp and also has y"):
        read_queries([write(tmp_path, "y\n1\n")], inputs)
    with_y = Inputs("table", (2,), 1.0, (0.0, 0.0), (1.0, 1.0), features=("age", "y"))
    assert read_queries([write(tmp_path, "age,y\n63,145\n")], with_y).x.tolist() == [[63, 145]]
    assert read_queries([write(tmp_path, "63,145\n")], inputs).x.tolist() == [[63, 145]]  # by position, without names


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MOST_LINE", 1000)
    with pytest.raises(ValueError, match=r"a\.csv can't be read: it has a line of more than 1,000 characters"):
        read_text(write(tmp_path, "1," * 600))


@pytest.mark.parametrize("names", ["1,2,3", "2019,2020,2021"])
def test_names_that_are_other_numbers_are_not_an_example(tmp_path, names):
    rows = "".join(f"{i}.5,{i}.25,-0.75\n" for i in range(8))
    (tmp_path / "a.csv").write_text(f"{names}\n{rows}")
    with pytest.raises(ValueError, match="names of columns that are numbers, or the first example"):
        read_text(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(f"{names}\n{rows}4,5,6\n")  # whole numbers are among the examples
    assert len(read_text(tmp_path / "a.csv").columns["x0"]) == 10


def test_an_index_that_pandas_has_read_is_no_feature(tmp_path):
    frame = pd.DataFrame({"Unnamed: 0": [0, 1], "age": [60.5, 70.5]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for read, name in ((read_text, "a.csv"), (read_parquet, "a.parquet")):
        with pytest.raises(ValueError, match="'Unnamed: 0' is how pandas calls a column without a name"):
            read(tmp_path / name)


def test_whole_numbers_that_float64_does_not_hold_stay_different(tmp_path):
    near = [2**53 + i for i in (0, 1, 2, 3)]
    text = "id,v\n" + "".join(f"{number},{i}.5\n" for i, number in enumerate(near))
    table = read_text(write(tmp_path, text))
    assert table.columns["id"].tolist() == list(map(str, near))
    assert table.columns["v"].tolist() == [0.5, 1.5, 2.5, 3.5]
    with pytest.raises(ValueError, match=rf"id holds {near[1]}, a whole number beyond 2\^53.*leave the column out"):
        read_examples(write(tmp_path, text))
    # Labels are compared, not measured: they stay apart.
    labels = read_examples(write(tmp_path, text.replace("id", "y")), label="y")
    assert len(set(np.asarray(labels.y).tolist())) == 4
    # What is written with a point or an exponent is a measurement.
    assert read_examples(write(tmp_path, "a\n1e300\n2e300\n3.0e20\n")).x[:, 0].tolist() == [1e300, 2e300, 3e20]
    path = tmp_path / "a.parquet"
    pd.DataFrame({"id": near, "v": [0.5, 1.5, 2.5, 3.5]}).to_parquet(path)
    with pytest.raises(ValueError, match=rf"id holds {near[1]}, a whole number beyond"):
        read_examples(path)
