"""Metrics from binned counts: scikit-learn on the unbinned scores is right, within the bound that the counts give."""

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    mean_absolute_error,
    r2_score,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
)

from archipel import SGD, Ditto, FedAvg, FedAvgFT, Federation, FedSPM, Network, classification, fit, regression
from archipel.runs.metrics import assessment
from archipel.runs.metrics.classification import classification_metrics, reliability
from archipel.runs.metrics.counts import BINS, EDGES, Counts, count_scores
from archipel.runs.metrics.estimate import auc_interval, mean_interval, wilson
from archipel.runs.metrics.regression import regression_metrics, regression_sums

BLOCK = SGD(lr=0.2, steps=5, batch=None)


def scored(n, k, seed, sharp=2.0):
    """Random classes and log-probabilities that know something about them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    logits = rng.normal(size=(n, k)) * sharp
    logits[np.arange(n), y] += 1
    logp = torch.from_numpy(logits).float().log_softmax(-1)
    return logp, torch.from_numpy(y)


@pytest.mark.parametrize(("n", "k", "sharp"), [(40, 2, 2.0), (3000, 2, 2.0), (500, 2, 12.0), (600, 4, 3.0)])
def test_metrics_from_counts_are_scikit_learns_within_the_stated_bound(n, k, sharp):
    logp, y = scored(n, k, seed=n + k, sharp=sharp)
    p, given = logp.double().exp().numpy(), logp.argmax(-1).numpy()
    found = classification_metrics(Counts.of(count_scores(logp, y)))
    average = "binary" if k == 2 else "macro"
    inverse = [recall_score(y != c, given != c) for c in range(k)]  # specificity: recall of the rest
    exact = {
        "accuracy": float((given == y.numpy()).mean()),
        "balanced_accuracy": balanced_accuracy_score(y, given),
        "sensitivity": recall_score(y, given, average=average),
        "specificity": inverse[1] if k == 2 else np.mean(inverse),
        "f1": f1_score(y, given, average=average),
    }
    for name, value in exact.items():
        assert found[name].value == pytest.approx(value, abs=1e-12), name
        assert found[name].error == 0
        assert found[name].low <= value <= found[name].high
    # Float32 probabilities add up to 1 within 1e-6, which scikit-learn asks for; one against the rest.
    auc = np.mean([roc_auc_score(y == c, p[:, c]) for c in ([1] if k == 2 else range(k))])
    brier = brier_score_loss(y, p[:, 1]) if k == 2 else ((p - np.eye(k)[y]) ** 2).sum(1).mean()
    for name, value in {"auc": auc, "brier": brier}.items():
        # The bound is a bound on exact arithmetic; float64 sums over n examples add rounding.
        assert abs(found[name].value - value) <= found[name].error + 1e-12, name
        assert found[name].error < 0.03  # sharp scores crowd at 0 and 1, where bins end at 10⁻¹⁰


def test_the_bounds_are_not_idle():
    """With all scores in one bin AUC is 1/2 and may be off by 1/2, as it says; and the witness is indeed off."""
    logp = torch.tensor([[0.5001, 0.4999], [0.4999, 0.5001]]).log()
    low = float(EDGES[(EDGES > 0.4999).nonzero()[0]] - EDGES[(EDGES > 0.4999).nonzero()[0] - 1])
    shifted = (logp.exp() * torch.tensor([1.0, 1.0]) + torch.tensor([-low / 4, low / 4])).log()
    found = classification_metrics(Counts.of(count_scores(shifted, torch.tensor([0, 1]))))["auc"]
    assert (found.value, found.error, found.low, found.high) == (0.5, 0.5, 0.0, 1.0)
    assert roc_auc_score([0, 1], shifted.exp()[:, 1]) == 1.0


def test_counts_lose_no_example_and_masked_or_infinite_answers_are_told_apart():
    logp, y = scored(50, 3, seed=1)
    logp[7] = torch.nan
    logp[8] = torch.tensor([0.0, -torch.inf, -torch.inf])
    mask = torch.arange(50) < 40
    replies = torch.func.vmap(count_scores)(logp[None], y[None], mask[None])
    counts = Counts.of({name: value[0] for name, value in replies.items()})
    assert (counts.n, counts.lost) == (39, 1)
    assert counts.scores.sum((1, 2)).tolist() == [39] * 3
    assert counts.scores[:, 1].sum(1).tolist() == counts.confusion.sum(1).tolist()
    assert counts.scores.shape[-1] == BINS == len(EDGES) - 1
    assert bool((EDGES.diff() > 0).all())


def test_the_curve_adds_up():
    logp, y = scored(400, 2, seed=5)
    points = reliability(Counts.of(count_scores(logp, y)))
    p = logp.double().exp().numpy()[:, 1]
    assert sum(point["n"] for point in points) == 400
    for point in points:
        tenth = int(point["predicted"] * 10)
        inside = (p >= tenth / 10) & (p < (tenth + 1) / 10)
        assert point["n"] == inside.sum()
        assert point["observed"] == pytest.approx(y.numpy()[inside].mean())
        assert abs(point["predicted"] - p[inside].mean()) <= 1 / 1000  # half of the widest bin


def covered(intervals, truth):
    return sum(low <= truth <= high for low, high in intervals)


def enough(hits, trials, coverage):
    """Whether so many hits are likely, at 1 in 10,000, if an interval covers with this probability or more."""
    return hits >= binom.ppf(1e-4, trials, coverage)


@pytest.mark.parametrize(("n", "p"), [(12, 0.3), (12, 0.9), (60, 0.02), (60, 0.5)])
def test_wilsons_interval_covers(n, p):
    """Exact coverage, summed over the binomial distribution. Wilson's lies around 95 % and dips to 90 % or so near the
    edges (Brown, Cai, DasGupta 2001, figure 5: not below 0.83 at the worst p, and above 0.92 at these).
    """
    coverage = sum(binom.pmf(k, n, p) for k in range(n + 1) if wilson(k, n).low <= p <= wilson(k, n).high)
    assert coverage >= 0.92


@pytest.mark.parametrize(("m", "n", "gap"), [(8, 12, 1.0), (5, 40, 0.5), (40, 60, 2.0)])
def test_the_interval_of_auc_covers(m, n, gap):
    """Binormal scores: AUC = Φ(gap/√2). Newcombe's evaluation finds mean coverage of 0.95 and minima near 0.93."""
    from scipy.stats import norm

    rng, trials, found = np.random.default_rng(m), 600, []
    for _ in range(trials):
        logits = np.concatenate([rng.normal(size=n), rng.normal(gap, size=m)])
        two = torch.from_numpy(np.stack([np.zeros(m + n), logits], 1)).log_softmax(-1)
        counts = Counts.of(count_scores(two, torch.tensor([0] * n + [1] * m)))
        one = classification_metrics(counts)["auc"]
        found.append((one.low, one.high))
    assert enough(covered(found, norm.cdf(gap / 2**0.5)), trials, 0.93)


def test_intervals_of_means_f1_and_balanced_accuracy_cover():
    """A calibrated model: p uniform, y ~ Bernoulli(p): Brier = 1/6; given by p ≥ 1/2, sensitivity = specificity =
    3/4, F1 = 3/4 (TP 3/8, FP 1/8, FN 1/8).
    """
    rng, trials = np.random.default_rng(0), 600
    found = {name: [] for name in ("brier", "f1", "balanced_accuracy")}
    for _ in range(trials):
        p = rng.uniform(size=60)
        y = torch.from_numpy((rng.uniform(size=60) < p).astype(np.int64))
        logp = torch.from_numpy(np.stack([1 - p, p], 1)).log()
        metrics = classification_metrics(Counts.of(count_scores(logp, y)))
        for name, kept in found.items():
            kept.append((metrics[name].low, metrics[name].high))
    for name, truth in {"brier": 1 / 6, "f1": 3 / 4, "balanced_accuracy": 3 / 4}.items():
        # Asymptotic intervals at n = 60: 95 % but for O(1/n); 0.93 leaves them that.
        assert enough(covered(found[name], truth), trials, 0.93), name


def test_macro_means_cover():
    """Three classes, three scores: class k's logit k is raised. The truth is a large sample's (its error: 0.002)."""

    def drawn(rng, n):
        y = rng.integers(3, size=n)
        logits = rng.normal(size=(n, 3))
        logits[np.arange(n), y] += 1.5
        counts = Counts.of(count_scores(torch.from_numpy(logits).log_softmax(-1), torch.from_numpy(y)))
        return classification_metrics(counts)

    truth, rng, trials = drawn(np.random.default_rng(9), 200_000), np.random.default_rng(0), 400
    names = ("auc", "sensitivity", "specificity", "f1", "brier", "balanced_accuracy", "accuracy")
    found: dict = {name: [] for name in names}
    for _ in range(trials):
        one = drawn(rng, 90)
        for name in names:
            found[name].append((one[name].low, one[name].high))
    for name in names:
        assert enough(covered(found[name], truth[name].value), trials, 0.94), name


def test_regression_metrics_are_scikit_learns_and_cover():
    """For y = x + noise: e ~ N(0, σ²), so MAE = σ√(2/π), RMSE = σ, R² = 1 − σ²/(1 + σ²)."""
    rng, trials, sigma, far = np.random.default_rng(0), 400, 0.5, 1e4
    truth = {"mae": sigma * (2 / np.pi) ** 0.5, "rmse": sigma, "r2": 1 - sigma**2 / (1 + sigma**2)}
    found = {name: [] for name in truth}
    for _ in range(trials):
        x = rng.normal(size=(100, 1)) + far
        y = x + sigma * rng.normal(size=(100, 1))
        sums = regression_sums(torch.from_numpy(x), torch.from_numpy(y), torch.tensor([far]))
        metrics = regression_metrics(sums[0])
        for name, kept in found.items():
            kept.append((metrics[name].low, metrics[name].high))
    exact = {"mae": mean_absolute_error(y, x), "rmse": root_mean_squared_error(y, x), "r2": r2_score(y, x)}
    for name, value in exact.items():
        assert metrics[name].value == pytest.approx(value, rel=1e-9)  # float64 sums of numbers near 1
        assert enough(covered(found[name], truth[name]), trials, 0.92), name


def test_small_numbers_have_intervals_or_none():
    assert wilson(0, 0).value is None
    assert auc_interval(1.0, 0, 5).value is None
    assert 0 < auc_interval(1.0, 3, 3).low < 1
    assert auc_interval(0.0, 3, 3).high == pytest.approx(1 - auc_interval(1.0, 3, 3).low, abs=1e-9)
    assert mean_interval(0.5, 0.0, 1).low is None
    assert wilson(12, 12).high == 1.0


@pytest.fixture(scope="module")
def hospitals():
    rng = np.random.default_rng(3)
    arrays = []
    for n, shift in ((60, 0.0), (25, 0.7), (120, -0.5)):
        x = rng.normal(size=(n, 4)).astype(np.float32) + shift
        arrays.append((x, np.where(x[:, 0] + rng.normal(size=n) > shift, "ill", "well")))
    return Federation.from_arrays(arrays, names=["Nice", "Lyon", "Lille"], test=0.4)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedavgft", "fedspm"])
def test_a_runs_sites_are_scikit_learns_on_its_own_answers(hospitals, method):
    """Every site's counts, batched and padded or not, against the run's predictions one site at a time."""
    task = classification(torch.nn.Linear(4, 4), hospitals)
    router = Network(torch.nn.Linear(4, 4), hospitals.inputs)
    made = {
        "fedavg": lambda: FedAvg(task, BLOCK),
        "ditto": lambda: Ditto(FedAvg(task, BLOCK), personal=BLOCK),
        "fedavgft": lambda: FedAvgFT(task, BLOCK, tuning=BLOCK),
        "fedspm": lambda: FedSPM(task, router, components=2, local=BLOCK, routing=BLOCK),
    }
    run = fit(made[method](), hospitals, rounds=4)
    sites = run.evaluate(hospitals, positive="ill").sites
    title = type(run.algorithm).__name__
    assert sites.positive == "ill"
    where, all_y, all_p = hospitals.classes.index("ill"), [], []
    for client in hospitals.clients:
        y = (client.test["y"] == where).numpy()
        p = run.predict(client.test["x"], client=client.name).values.double().numpy()[:, where]
        row = sites.of(title)[client.name]
        auc, brier = row.metrics["auc"], row.metrics["brier"]
        # 1e-4: predict's probabilities are float32 of another batch size; a score near an edge changes its bin.
        assert abs(auc.value - roc_auc_score(y, p)) <= auc.error + 1e-4
        assert abs(brier.value - brier_score_loss(y, p)) <= brier.error + 1e-4
        assert row.metrics["sensitivity"].value == pytest.approx(recall_score(y, p > 0.5))
        usual = sites.of("majority class")[client.name]
        most = client.train["y"].mode().values
        assert usual.metrics["accuracy"].value == pytest.approx(float((client.test["y"] == most).double().mean()))
        assert usual.metrics["auc"].value == 0.5
        all_y.append(y)
        all_p.append(p)
    pooled = next(row for row in sites.rows if row.pooled and row.model == title).metrics["auc"]
    assert abs(pooled.value - roc_auc_score(np.concatenate(all_y), np.concatenate(all_p))) <= pooled.error + 1e-4
    assert type(sites).from_json(sites.to_json()) == sites


def test_sites_that_are_asked_one_by_one_say_the_same(hospitals, monkeypatch):
    """Counts of many classes are large: no more sites are asked at once than their counts need memory."""
    run = fit(FedAvg(classification(torch.nn.Linear(4, 4), hospitals), BLOCK), hospitals, rounds=2)
    together = run.evaluate(hospitals).sites
    monkeypatch.setattr(assessment, "TOGETHER", 1)
    assert run.evaluate(hospitals).sites == together


def test_what_a_mean_hides_is_said():
    """91.7 % on twelve patients: eleven are ill, and all are called ill."""
    rng = np.random.default_rng(0)
    arrays = []
    for ill in (38, 20):
        x = rng.normal(size=(40, 2)).astype(np.float32)
        arrays.append((x, np.array(["well"] * (40 - ill) + ["ill"] * ill)))
    federation = Federation.from_arrays(arrays, names=["small", "large"], test=0.3, classes=["well", "ill"], seed=1)
    counts = torch.bincount(federation.clients[0].test["y"], minlength=2).tolist()
    run = fit(FedAvg(classification(torch.nn.Linear(2, 2), federation), SGD(lr=0.01, steps=1)), federation, rounds=1)
    sites = run.evaluate(federation).sites
    if counts[0] == 0:
        assert any("no example has the class 'well'" in line for line in sites.warnings)
    specificity = sites.of("FedAvg")["small"].metrics["specificity"]
    said = any("small: specificity is 0" in line for line in sites.warnings)
    assert said == (specificity.value == 0)
    silent = torch.full((12, 2), 0.5).log() + torch.tensor([-1.0, 0.3])
    from archipel.runs.metrics.assessment import _concerns

    found = Counts.of(count_scores(silent, torch.tensor([0] + [1] * 11)))
    assert classification_metrics(found)["accuracy"].value == pytest.approx(11 / 12)
    assert _concerns("small", found, ("well", "ill"), 1) == [
        "small: specificity is 0: none of the 1 examples of class 'well' was recognised."
    ]


def test_sites_of_a_regression(hospitals):
    rng = np.random.default_rng(1)
    arrays = [(x := rng.normal(size=(n, 3)).astype(np.float32), x @ [1.0, 2.0, 0.0]) for n in (40, 30, 8)]
    arrays = [(x, y.astype(np.float32)) for x, y in arrays]
    federation = Federation.from_arrays(arrays, names=["a", "b", "few"], test=0.4)
    run = fit(FedAvg(regression(torch.nn.Linear(3, 3), federation), BLOCK), federation, rounds=3)
    sites = run.evaluate(federation).sites
    assert any(line.startswith("few has too few") for line in sites.warnings)
    for client in federation.clients[:2]:
        predicted = run.predict(client.test["x"], client=client.name).values[:, 0].numpy()
        row = sites.of("FedAvg")[client.name].metrics
        assert row["mae"].value == pytest.approx(mean_absolute_error(client.test["y"], predicted), rel=1e-5)  # float32
        assert row["r2"].value == pytest.approx(r2_score(client.test["y"], predicted), rel=1e-4)
        usual = sites.of("training mean")[client.name].metrics["mae"].value
        mean = float(client.train["y"].double().mean())
        assert usual == pytest.approx(mean_absolute_error(client.test["y"], np.full(len(predicted), mean)), rel=1e-6)
