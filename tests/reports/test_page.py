"""The report: hostile names stay text, numbers are those of the evaluation, and a browser shows and prints it."""

import base64
import json
from html.parser import HTMLParser

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from typer.testing import CliRunner

from archipel.cli.main import app
from archipel.reports.page.page import By
from archipel.reports.site_tables import number

NAMES = ["<img src=x onerror=alert(1)>", "Lyon & 'Sons' $x$", "{{ 7 * 7 }}"]
CLASSES = ["<script>alert(2)</script>", "ill"]
BROWSER = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update", "--window-size=1000,1400")  # fmt: skip


def call(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose clients and classes have names that would be HTML, a template or a formula; and its report."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for name, n in zip(NAMES, (80, 60, 40), strict=True):
        x = rng.normal(size=(n, 3))
        y = (x[:, 0] + rng.normal(size=n) > 0).astype(int)
        lines = ["age,dose,weight,y", *(f"{a},{b},{c},{k}" for (a, b, c), k in zip(x, y, strict=True))]
        (folder / "data" / f"{name}.csv").write_text("\n".join(lines))
    settings = ["rounds=4", "evaluate_every=2", "data.source=arrays", f"data.data_dir={folder / 'data'}",
                f"data.classes={json.dumps(CLASSES)}"]  # fmt: skip
    call("run", "heart-fedspm", *settings, "--out", folder / "run")
    call("run", "heart-fedavg", *settings, "--out", folder / "other")
    call("report", folder / "run", folder / "other", "--local", "--by", "age=-0.5,0.5", "--by", "dose")
    return folder / "run"


class Tags(HTMLParser):
    """All tags of a page with their attributes, and its text."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_names_stay_text_and_nothing_is_loaded(hostile):
    found = Tags()
    found.feed((hostile / "report.html").read_text())
    names = {tag for tag, _ in found.tags}
    assert not names & {"script", "img", "iframe", "object", "embed"}
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))  # of one file, without the network
    for text in (*NAMES, *CLASSES):
        assert text in found.text


def test_the_numbers_are_those_of_the_evaluation(hostile):
    page = " ".join((hostile / "report.html").read_text().split())
    rows = json.loads((hostile / "evaluation.json").read_text())["sites"]["rows"]
    assert {row["model"] for row in rows} == {"FedSPM", "Local", "majority class"}
    for row in rows:
        cells = "".join(f"<td>{number(one['value'])}<span" for one in row["metrics"].values())
        stripped = page.replace(" ", "")
        start = f'<tdclass="name">{row["model"].replace(" ", "")}</td><td>{row["n"]}</td>'
        assert any(
            [cell.split("<span")[0] for cell in part.split("<td>")[1 : 1 + len(row["metrics"])]]
            == [cell.split("<span")[0] for cell in cells.split("<td>")[1:]]
            for part in stripped.split(start)[1:]
        ), row
    for words in ("The weakest site", "Where queries without a sender go", "Subgroups by age", "How to repeat it",
                  "At a glance", "FedAvg on data"):  # fmt: skip
        assert words in page


def test_a_browser_shows_and_prints_it_without_errors(hostile, tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (*BROWSER, f"--user-data-dir={tmp_path}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.get((hostile / "report.html").as_uri())
        assert driver.get_log("browser") == []
        assert NAMES[0] in driver.find_element("tag name", "body").text
        wide = "return document.documentElement.scrollWidth <= window.innerWidth"
        assert driver.execute_script(wide)
        driver.set_window_size(500, 900)  # a phone: tables scroll within the page
        assert driver.execute_script(wide)
        printed = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    finally:
        driver.quit()
    assert printed.startswith(b"%PDF")
    assert 3 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 20


def test_refusals_are_sentences(hostile, tmp_path):
    assert "no column 'height'" in call("report", hostile, "--by", "height", code=2).stderr
    assert "There is no class" in call("report", hostile, "--positive", "well", code=2).stderr
    assert "no such folder" in call("report", tmp_path / "none", code=2).stderr


def test_a_column_whose_name_has_an_equals_sign():
    assert By.parse("sex=male=0.5") == By("sex=male", (0.5,))
