"""The FedSPM paper's tables and figures as commands: tiny grids on the digits, checked against their own runs."""

import csv
import re
from dataclasses import replace
from io import StringIO
from os import devnull

import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.data.sources.catalogue import load_source
from archipel.experiments.building import build
from archipel.experiments.grids.grid import CellsFailed
from archipel.experiments.loading import load
from archipel.papers.fedspm import accuracy_tables as fedspm
from archipel.papers.fedspm import figure3, figure4
from archipel.papers.fedspm import published as paper
from archipel.papers.fedspm.baselines import DEFAULT, METHODS, PAPER, Setting, chosen, fast, full
from archipel.papers.fedspm.cells import cost, gain, metric
from archipel.papers.fedspm.generated_isic import generated_isic
from archipel.papers.fedspm.report import Benchmark
from archipel.reports.tables import Column, Entry, Table, as_csv, for_terminal, latex, markdown, ranks

TINY = Setting(
    data={"source": "digits", "clients": 3},
    encoder={"name": "mlp", "features": 8, "options": {"hidden": [8]}},
    router={"name": "mlp", "features": 4, "options": {"hidden": [4]}},
    rounds=1,
    batch=16,
    expectation="incremental",
)
QUIET = Console(file=open(devnull, "w"))  # noqa: SIM115 (as long as the tests)


def grid(out, **more):
    return Benchmark(out, workers=1, command="archipel bench …", console=QUIET, **more)


def test_ranks_with_ties():
    assert ranks({"a": 5.0, "b": 7.0, "c": 6.0, "d": 1.0}) == {"b": 1, "c": 2, "a": 3}
    assert ranks({"a": 5.0, "b": 5.0, "c": 5.0, "d": 5.0}) == dict.fromkeys("abcd", 1)
    assert ranks({"a": 5.0, "b": 4.0, "c": 4.0, "d": 3.0}) == {"a": 1, "b": 2, "c": 2}
    assert ranks({"a": 0.1, "b": 0.2, "c": float("nan")}, "low") == {"a": 1, "b": 2}
    # what is printed alike is marked alike
    column = Column("", "", {"a": Entry(1.001), "b": Entry(1.002), "c": None}, "high").marked
    assert [column.entries[row].rank for row in "ab"] == [1, 1]


def test_mean_and_standard_deviation_by_hand():
    # 0.1, 0.2, 0.6: mean 0.3, squares 0.04 + 0.01 + 0.09 = 0.14, over two
    entry = Entry.of([0.1, 0.2, 0.6], 100)
    assert entry.mean == pytest.approx(30)
    assert entry.sd == pytest.approx(100 * 0.07**0.5)
    assert Entry.of([0.5]) == Entry(0.5, None)
    assert Entry.of([]) is None


SHOWN = Table(
    "A & B, 10 %",
    {"a": "First (C×)", "b": "Second_one"},
    [
        Column("Accuracy", "α = 1", {"a": Entry(50.0, 1.5), "b": Entry(60.0, None)}, "high"),
        Column("Accuracy", "2", {"a": Entry(1.0), "b": None}),
        Column("Cost", "MB", {"a": Entry(3.0), "b": Entry(4.0)}, "low"),
    ],
)


def test_markdown_by_hand():
    assert markdown(SHOWN).splitlines() == [
        "**A & B, 10 %**",
        "",
        "|  | Accuracy: α = 1 | Accuracy: 2 | Cost: MB |",
        "| --- | ---: | ---: | ---: |",
        "| First (C×) | 50.00 ± 1.50 (2) | 1.00 | 3.00 (1) |",
        "| Second_one | 60.00 (1) | – | 4.00 (2) |",
    ]


def check_latex(text):
    """What can be told without LaTeX: environments and braces close, mathematics too, rows have as many cells."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines)
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == []
    depth = 0
    for sign in re.sub(r"\\[{}]", "", body):
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    assert not re.findall(r"[×α±−–]", body)
    outside = re.sub(r"\$[^$]*\$", "", body)
    assert not re.findall(r"(?<!\\)[_^#%]", outside)
    for tabular in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", body, re.DOTALL):
        width = len(re.search(r"\{tabular\}\{(\w+)\}", tabular)[1])
        rows = [line for line in tabular.splitlines() if line.endswith(r"\\")]
        for row in rows:
            spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans) == width
        assert len(rows) >= 3


def test_latex_is_balanced_and_escaped():
    text = latex(SHOWN)
    check_latex(text)
    assert r"\caption{A \& B, 10 \%}" in text
    assert r"First (C$\times$) & $50.00 \pm 1.50^{(2)}$ & $1.00$ & $3.00^{(1)}$ \\" in text
    assert r"Second\_one & $60.00^{(1)}$ & -- & $4.00^{(2)}$ \\" in text


def test_csv_and_terminal_hold_every_entry():
    lines = list(csv.DictReader(StringIO(as_csv([SHOWN]))))
    assert [(line["row"], line["column"], line["mean"], line["sd"], line["rank"]) for line in lines] == [
        ("First (C×)", "α = 1", "50", "1.5", "2"),
        ("Second_one", "α = 1", "60", "", "1"),
        ("First (C×)", "2", "1", "", ""),
        ("First (C×)", "MB", "3", "", "1"),
        ("Second_one", "MB", "4", "", "2"),
    ]
    for width, pieces in ((200, 1), (45, 2), (20, 3)):
        console = Console(file=StringIO(), width=width)
        shown = for_terminal(SHOWN, width)
        console.print(*shown)
        assert len(shown) == pieces
        if width > 20:
            text = console.file.getvalue().replace("\u00a0", " ")
            assert all(entry in text for entry in ("50.00 ± 1.50 (2)", "60.00 (1)", "4.00 (2)"))
            assert max(map(len, text.splitlines())) <= width


def test_the_papers_numbers():
    # typed from the text of arXiv 2607.04085: corners, middles, and those that the text speaks of
    assert paper.table1("fedavg", "fashion-mnist", "system_accuracy") == (39.15, 1.31)
    assert paper.table1("fedavg", "cifar100", "average_accuracy") == (18.17, 0.53)
    assert paper.table1("clusterfl", "fashion-mnist", "average_accuracy") == (55.77, 2.32)
    assert paper.table1("feddrm", "cifar10", "system_accuracy") == (47.47, 0.09)
    assert paper.table1("fedgmm", "cifar100", "system_accuracy") == (11.97, 0.96)
    assert paper.table1("fedspm-cx", "cifar100", "average_accuracy") == (28.07, 0.46)
    assert paper.table1("local", "cifar10", "system_accuracy") is None
    assert paper.table2("fedspm", (0.5, 2.0), "system_accuracy") == 74.20
    assert paper.table2("fedspm-cx", (2.0, 2.0), "average_accuracy") == 56.65
    assert paper.table2("fedgmm", (1.0, 0.5), "average_accuracy") == 44.08
    assert paper.table2("fedrep", (1.0, 0.5), "average_accuracy") is None
    # Table 2 holds Table 1's Fashion-MNIST at (1, 2), twice
    for method in PAPER:
        for name in paper.METRICS:
            assert paper.table2(method, (1.0, 2.0), name) == paper.table1(method, "fashion-mnist", name)[0]
    # the marks that Table 1 prints
    for source, firsts in {"fashion-mnist": ["fedspm", "fedspm-cx", "feddrm"], "cifar100": None}.items():
        found = ranks({m: paper.table1(m, source, "system_accuracy")[0] for m in PAPER})
        assert list(found) == (firsts or ["fedspm", "fedspm-cx", "feddrm"])
    averages = ranks({m: paper.table1(m, "fashion-mnist", "average_accuracy")[0] for m in PAPER})
    assert averages == {"fedspm": 1, "fedspm-cx": 2, "clusterfl": 3}


def test_settings_are_the_papers():
    for source, features, rounds, batch in (("fashion-mnist", 32, 200, 128), ("cifar100", 64, 400, 128)):
        config = full(source).config("fedspm-cx", 2)
        assert (config.encoder.features, config.rounds, config.seed) == (features, rounds, 2)
        assert (config.data.clients, config.data.alpha_inter, config.data.alpha_intra) == (8, 1.0, 2.0)
        spm = config.algorithm
        assert (spm.components, spm.encoders, spm.expectation, config.data.components) == (3, "own", "exact", 2)
        assert (spm.router.name, spm.router.features) == ("lenet", features)
        for block, steps, momentum in ((spm.local, 10, 0.9), (spm.routing, 15, 0.95)):
            assert (block.lr, block.schedule, block.batch) == (0.01, "cosine", batch)
            assert (block.steps, block.momentum) == (steps, momentum)
    isic = full("fed-isic2019").config("fedspm", 0)
    assert (isic.encoder.features, isic.algorithm.router.features, isic.rounds) == (256, 128, 400)
    assert isic.algorithm.local.batch == isic.algorithm.routing.batch == 32
    assert fast().config("fedspm", 0).algorithm.expectation == "incremental"
    for method, field in (("clusterfl", "clusters"), ("fedem", "components"), ("fedgmm", "gaussians")):
        assert getattr(fast().config(method, 0).algorithm, field) == 3
    for method in ("fedavgft", "fedbabu"):
        tuning = full("fed-isic2019").config(method, 0).algorithm.tuning
        assert (tuning.epochs, tuning.steps, tuning.batch) == (1, None, 32)
    assert full("fed-isic2019").config("ditto", 0).algorithm.inner.local.batch == 32
    assert full("cifar100").config("fedavg", 0).data.superclasses


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_made(method):
    algorithm, federation = build(TINY.config(method, 0))
    assert len(federation) == 3
    assert type(algorithm).__name__.lower() == METHODS[method].algorithm["name"]


def test_methods_are_chosen_by_name():
    assert chosen(None) == DEFAULT
    assert len(PAPER) == 11
    assert set(DEFAULT) - set(PAPER) == {"local"}
    assert chosen("FedAvg, fedavg,local") == ("fedavg", "local")


def test_cifar100_is_learnt_by_its_superclasses():
    source = replace(
        load_source("digits"), superclass=torch.arange(10) % 2, superclasses=("even", "odd"), name="cifar100"
    )
    coarse = source.by_superclass()
    assert coarse.classes == ("even", "odd")
    assert torch.equal(coarse.y, source.y % 2)
    with pytest.raises(ValueError, match="no superclasses"):
        coarse.by_superclass()
    with pytest.raises(ValueError, match="digits has no superclasses"):
        replace(TINY, data={"source": "digits", "superclasses": True}).config("fedavg", 0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Table 1 with two seeds of three methods on the digits."""
    out = tmp_path_factory.mktemp("table1")
    by = fedspm.table1({"digits": TINY}, ("fedavg", "local", "fedspm"), grid(out, seeds=2))
    return out, by


def test_table1_is_made_of_its_runs(tables):
    out, by = tables
    assert by.keys() == {("digits", method) for method in ("fedavg", "local", "fedspm")}
    for method in ("fedavg", "local", "fedspm"):
        for seed in (0, 1):
            run = load(out / "runs" / "digits" / method / f"seed{seed}")
            result = by["digits", method][seed]
            assert result["metrics"] == run.metrics
            assert result["uplink"] == run.history[0]["uplink"]
            assert result["seconds"] == run.history[0]["seconds"]
    text = (out / "table1.md").read_text()
    for method, title in (("fedavg", "FedAvg (1×)"), ("fedspm", "FedSPM (1×)")):
        mean, sd = statistics_by_hand([100 * v for v in metric(by, "digits", method, "system_accuracy")])
        assert re.search(rf"\| {re.escape(title)} \| {mean:.2f} ± {sd:.2f} \(\d\) \|", text)
    assert cost(by, "digits", "local", "uplink") == [12.0, 12.0]  # three clients' losses, of four bytes each
    gains = gain(by, "digits", "fedavg")
    averages = [metric(by, "digits", m, "average_accuracy") for m in ("fedavg", "local")]
    assert gains == [a - b for a, b in zip(*averages, strict=True)]
    assert "Command: `archipel bench …`" in text
    assert "1 rounds, encoder mlp with 8 features" in text
    assert "torch" in text.splitlines()[-1]
    check_latex((out / "table1.tex").read_text())
    assert "worst 10 %" in (out / "table1.csv").read_text()


def statistics_by_hand(values):
    mean = sum(values) / len(values)
    return mean, (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5


def test_a_second_call_trains_nothing_and_more_seeds_only_what_is_missing(tables, monkeypatch):
    out, by = tables
    asked = []

    def refuse(config, folder):
        asked.append((config.name, config.seed))
        raise ValueError("no more training")

    monkeypatch.setattr("archipel.papers.fedspm.cells.train", refuse)
    assert fedspm.table1({"digits": TINY}, ("fedavg", "local", "fedspm"), grid(out, seeds=2)) == by
    assert asked == []
    with pytest.raises(CellsFailed, match=r"1 of 3 cells failed(.|\n)*fedavg/seed2: no more training"):
        fedspm.table1({"digits": TINY}, ("fedavg",), grid(out, seeds=3))
    assert asked == [("fedavg", 2)]
    # what there is is reported on all the same
    assert "| FedAvg (1×) | " in (out / "table1.md").read_text()
    with pytest.raises(ValueError, match=r"config\.rounds: 1 there, 2 now(.|\n)*--fresh"):
        fedspm.table1({"digits": replace(TINY, rounds=2)}, ("fedavg",), grid(out, seeds=1))


def test_table2_varies_one_heterogeneity_at_a_time(tmp_path):
    by = fedspm.table2(replace(TINY, data={"source": "digits"}), ("fedavg",), grid(tmp_path))
    assert len(by) == 5  # (1, 2) belongs to both halves
    text = (tmp_path / "table2.md").read_text()
    middle = f"{100 * metric(by, 'inter1-intra2', 'fedavg', 'system_accuracy')[0]:.2f}"
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| FedAvg")]
    assert [cell.split()[0] for cell in (rows[0][3], rows[1][5])] == [middle, middle]
    # beside the paper's: 49.85, 39.15, 31.37 between clients and 42.15, 37.59, 39.15 within
    assert [row[place].split()[0] for row in rows for place in (2, 4, 6)] == [
        "49.85",
        "39.15",
        "31.37",
        "42.15",
        "37.59",
        "39.15",
    ]
    check_latex((tmp_path / "table2.tex").read_text())


def test_figure3_varies_the_number_of_components(tmp_path):
    by = figure3.figure3(TINY, (1, 2), grid(tmp_path))
    for C in (1, 2):
        run = load(tmp_path / "runs" / f"c{C}" / "fedspm" / "seed0")
        assert run.algorithm.components == C
        assert run.algorithm.encoders == "shared"
        assert by[f"c{C}", "fedspm"][0]["metrics"] == run.metrics
    with Image.open(tmp_path / "figure3.png") as picture:
        assert min(picture.size) > 300
    drawn = figure3.against_components({1: Entry(50.0, 2.0), 3: Entry(60.0, None)})
    (line,) = [line for line in drawn.axes[0].get_lines() if line.get_linestyle() == "-"]
    assert line.get_xydata().tolist() == [[1, 50], [3, 60]]


def test_figure4_on_generated_pictures_says_so(tmp_path):
    by = figure4.fed_isic(grid(tmp_path), "fedavg,fedspm", fast=True, rounds=1, size=32, generated=True, share=0.004)
    text = (tmp_path / "figure4.md").read_text()
    assert "**Generated pictures in Fed-ISIC2019's layout (not the real data)**" in text
    assert "were not available" in text
    for ending in ("png", "pdf"):
        assert (tmp_path / f"figure4.{ending}").stat().st_size > 5_000
    clients = by["fed-isic2019", "fedspm"][0]["clients"]
    # FLamby's 9930, 3163, … training images times 0.004, at least two
    assert [client["train"] for client in clients] == [40, 13, 11, 7, 3, 2]
    assert [client["test"] for client in clients] == [10, 3, 3, 2, 2, 2]


def test_generated_pictures_are_the_same_again_and_differ_by_centre(tmp_path):
    folders = [generated_isic(tmp_path / name, share=0.004, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    options = {"size": 16, "verify": False, "cache_dir": tmp_path / "cache"}
    one, same, other = (load_source("fed-isic2019", folder, **options) for folder in folders)
    assert one.checksum == same.checksum != other.checksum
    light = [one.x[one.client == i].float().mean((0, 2, 3)) for i in range(6)]
    gaps = [float((a - b).abs().max()) for i, a in enumerate(light) for b in light[:i]]
    assert min(gaps) > 3  # grey values: more than noise, which averages out over 256 pixels of several pictures


def test_without_photographs_figure4_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("ARCHIPEL_DATA", raising=False)
    result = CliRunner().invoke(app, ["bench", "figure4", "--out", str(tmp_path), "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "--generated" in result.output


def test_unknown_methods_are_named_before_anything_runs(tmp_path):
    result = CliRunner().invoke(app, ["bench", "table2", "--fast", "--methods", "fedsmp", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "Did you mean 'fedspm'?" in result.output
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_that_the_fast_setting_would_not_take_is_refused(tmp_path):
    for name in ("table1", "table2", "figure2", "figure3", "figure4"):
        asked = ["bench", name, "--fast", "--encoder", "resnet8", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 2, name
        assert "--fast chooses its own networks" in result.output
    assert list(tmp_path.iterdir()) == []


def test_bars_are_drawn_for_those_who_have_the_metric():
    panels = {
        "System": {"fedavg": Entry(40.0, 1.0), "fedspm": Entry(50.0)},
        "Routing": {"fedavg": None, "fedspm": Entry(90.0)},
    }
    figure = figure4.bars(panels, {"fedavg": "FedAvg (1×)", "fedspm": "FedSPM (1×)"}, "title")
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [[40, 50], [90]]
    assert [label.get_text() for label in figure.axes[1].get_xticklabels()] == ["FedSPM"]
