"""The routing benchmarks on small cases: what they measure, and what they draw."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from archipel import SGD, FedSPM, Network, classification, fit
from archipel.data.dual_heterogeneity import dual_heterogeneity, dual_transform
from archipel.data.sources.scikit import digits
from archipel.drm.strangers import Watch
from archipel.engines.setting import Setting
from archipel.papers.fedspm.routing_figure import figure, learn, three_clients
from archipel.papers.fedspm.strangers import judge, strange_queries


def test_lessons_are_about_the_bayes_rule():
    best, ideal, lessons = learn(three_clients(), (60, 2000), queries=4000, repetitions=3)
    # 4 standard errors of a mean over 4000 queries, about 0.69 (by an independent integration below)
    assert best == pytest.approx(bayes_accuracy(), abs=4 * 0.0073)
    assert ideal.error < 3 * ideal.chance
    for lesson in lessons:
        assert len(lesson.regret) == 3
        assert min(lesson.regret) >= 0
    assert np.mean(lessons[1].regret) < np.mean(lessons[0].regret)
    drawn = figure(best, ideal, lessons)
    left, right = drawn.axes
    assert left.get_xscale() == left.get_yscale() == "log"
    names = [text.get_text() for text in right.get_legend().get_texts()]
    assert names[2] == f"Bayes rule: ECE {100 * ideal.error:.1f} %"


def bayes_accuracy():
    """∫ max_i ρ_i N(x; μ_i, I) dx on a grid."""
    grid = np.arange(-6, 8, 0.05)
    x = np.stack(np.meshgrid(grid, grid), -1)
    centres, rho = np.array([[0, 0], [1.5, 0], [0.5, 1.5]]), (0.5, 0.3, 0.2)
    densities = [p * np.exp(-((x - c) ** 2).sum(-1) / 2) / (2 * np.pi) for p, c in zip(rho, centres, strict=True)]
    return np.max(densities, axis=0).sum() * 0.05**2


def test_strangers_are_transformed_like_clients(data_dir):
    found = strange_queries(2, 3, data_dir, most=20)
    assert set(found) == {"digits", "letters", "transformed digits", "transformed letters"}
    for plain in ("digits", "letters"):
        grey, transformed = found[plain], found[f"transformed {plain}"]
        assert grey.shape == transformed.shape == (20, 3, 28, 28)
        assert bool((grey[:, 0] == grey[:, 2]).all())
        wardrobe = torch.stack(
            [dual_transform(grey[:, :1], torch.full((20,), c), i) for i in range(3) for c in range(2)], 1
        )
        assert bool((wardrobe == transformed[:, None]).flatten(2).all(2).any(1).all())


def test_strangers_are_judged_by_rates_and_areas(data_dir):
    federation = dual_heterogeneity(digits(), clients=2, size=28, validation=0.2)
    encoder = torch.nn.Sequential(torch.nn.AvgPool2d(7), torch.nn.Flatten(), torch.nn.Linear(48, 4))
    block = SGD(lr=0.1, steps=2, batch=32)
    spm = FedSPM(classification(encoder, federation), Network(encoder, federation.inputs), 2, block, block)
    run = fit(spm, federation, rounds=1, setting=Setting(engine="loop"))
    numbers, drawn = judge(run, federation, data_dir)
    density = numbers["scores"]["density"]
    own = torch.cat([client.test["x"] for client in federation.clients])
    n, N = len(own), numbers["held out"]
    # 4 standard errors of a rate among n test examples at a threshold from N held-out ones
    assert abs(density["false alarms"] - 0.05) < 4 * np.sqrt(0.05 * 0.95 * (1 / n + 1 / N))
    watch = Watch.of(run, federation)
    strange = strange_queries(2, 2, data_dir)["letters"]
    scores = torch.cat([watch.scores(own), watch.scores(strange)])
    area = roc_auc_score(np.repeat([1, 0], [n, len(strange)]), scores.numpy())
    assert density["letters"]["area under ROC"] == pytest.approx(area)
    assert density["letters"]["told"] == pytest.approx(float(watch.strangers(strange).double().mean()))
    assert len(drawn.axes) == 3
