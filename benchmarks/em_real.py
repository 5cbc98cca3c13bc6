"""Federated EM on real data: mixtures of images, missing values, and people who move alike.

    python benchmarks/em_real.py

1. Mixtures of K = 20 full Gaussians on d = 20 principal components, themselves from clients' summed second moments:
   Fashion-MNIST over 20 clients that differ in their classes (Dirichlet 0.3), and FEMNIST by writer. Held-out
   log-likelihood and agreement with the classes of a federated mixture, one with personal weights, scikit-learn's on
   the pooled data, and each client's own (K of 1, 2, 5 and 10 by BIC).
2. Missing values: of the known ones one in ten is hidden and imputed, crossbill by elevation and heart disease by
   hospital.
3. The 30 people of HAPT by the weights of a mixture that they share.

It writes ``docs/results/em-real.json`` and ``docs/figures/em-people.png``, and prints what it finds.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

import results
from archipel.data import dirichlet_by_class, fashion_mnist
from archipel.data.sources.leaf import femnist
from archipel.data.sources.uci import hapt, heart_disease
from archipel.data.sources.unmarked import crossbill
from archipel.em.estimators import FederatedGaussianMixture
from archipel.em.factor_estimator import FederatedFactorModel
from archipel.reports.figures import save

Matrix = NDArray[np.float64]
D, K = 20, 20


def principal_components(parts: Sequence[Matrix], d: int) -> tuple[Matrix, Matrix]:
    """Return mean and first d axes, from each client's n, Σx and Σxxᵀ."""
    n = sum(len(x) for x in parts)
    mean = sum(x.sum(0) for x in parts) / n
    second = sum(x.T @ x for x in parts) / n
    _, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    return mean, vectors[:, ::-1][:, :d]


def halves(labels: Sequence[NDArray[np.int64]], test: float, seed: int) -> list[tuple[NDArray[np.int64], ...]]:
    """Return each client's training and test rows."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(y)) for y in labels]
    return [(rows[round(test * len(rows)) :], rows[: round(test * len(rows))]) for rows in orders]


def images(xs: Sequence[Matrix], ys: Sequence[NDArray[np.int64]], seed: int) -> dict[str, Any]:
    """Fit the four mixtures to clients' images, one flattened image a row."""
    cuts = halves(ys, 0.2, seed)
    train, test = ([x[cut[i]] for x, cut in zip(xs, cuts, strict=True)] for i in (0, 1))
    classes = np.concatenate([y[cut[1]] for y, cut in zip(ys, cuts, strict=True)])
    mean, axes = principal_components(train, D)
    train, test = ([(x - mean) @ axes for x in part] for part in (train, test))
    n = sum(map(len, test))
    found: dict[str, Any] = {"clients": len(xs), "train": sum(map(len, train)), "test": n}

    def note(
        name: str, scores: Sequence[float], labels: Sequence[NDArray[np.int64]], seconds: float, rounds: int
    ) -> None:
        of = np.concatenate(labels)
        found[name] = {
            "log_likelihood": float(sum(scores) / n),
            "adjusted_rand": adjusted_rand_score(classes, of),
            "mutual_information": normalized_mutual_info_score(classes, of),
            "rounds": rounds,
            "seconds": round(seconds, 1),
        }

    for name, own in (("federated", False), ("personal weights", True)):
        started = time.perf_counter()
        model = FederatedGaussianMixture(K, personal_weights=own, reg_covar=1e-3, random_state=seed).fit(train)
        whose = [{"client": i} if own else {} for i in range(len(test))]
        note(
            name,
            [model.score_samples(x, **who).sum() for x, who in zip(test, whose, strict=True)],
            [model.predict(x, **who) for x, who in zip(test, whose, strict=True)],
            time.perf_counter() - started,
            model.n_iter_,
        )
        found[name] |= {"uplink": model.uplink_, "downlink": model.downlink_}
    started = time.perf_counter()
    pooled = GaussianMixture(K, reg_covar=1e-3, init_params="k-means++", random_state=seed).fit(np.concatenate(train))
    scores, labels = [pooled.score_samples(x).sum() for x in test], [pooled.predict(x) for x in test]
    note("pooled, scikit-learn", scores, labels, time.perf_counter() - started, pooled.n_iter_)
    started, scores, labels = time.perf_counter(), [], []
    for i, (x, held_out) in enumerate(zip(train, test, strict=True)):
        tried = [GaussianMixture(k, reg_covar=1e-3, random_state=seed).fit(x) for k in (1, 2, 5, 10) if k < len(x)]
        best = min(tried, key=lambda model: model.bic(x))
        scores.append(best.score_samples(held_out).sum())
        labels.append(best.predict(held_out) + 100 * i)
    note("each client alone", scores, labels, time.perf_counter() - started, 0)
    return found


def imputation(x: Matrix, client: NDArray[np.int64], q: Sequence[int], noise: Any, seeds: int) -> dict[str, Any]:
    """Measure root mean square errors of randomly hidden values, in units of a column's standard deviation."""
    known = ~np.isnan(x)
    errors: dict[str, list[float]] = {}
    factors = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        hidden = known & (rng.uniform(size=x.shape) < 0.1)
        seen = np.where(hidden, np.nan, x)
        # Mean and deviation from sums over clients
        mean, std = np.nanmean(seen, 0), np.nanstd(seen, 0)
        z, truth = (seen - mean) / std, (x - mean) / std
        parts = [z[client == i] for i in range(client.max() + 1)]
        models = [federated_factors(parts, count, noise, seed) for count in q]
        best = min(models, key=lambda model: model.bic(parts))
        factors.append(int(best.n_components))
        pooled = federated_factors([z], best.n_components, noise, seed + 1000)
        guesses = {
            "mean of all": np.zeros_like(z),
            "mean of the client": np.concatenate([np.broadcast_to(own_mean(part), part.shape) for part in parts]),
            "factors, each client alone": np.concatenate([alone(part, q, noise, seed) for part in parts]),
            "factors, federated": np.concatenate([best.impute(part) for part in parts]),
            "factors, federated, about each client's mean": np.concatenate(about_own_means(parts, q, noise, seed)),
            "factors, pooled": pooled.impute(np.concatenate(parts)),
        }
        order = np.argsort(client, kind="stable")
        where = hidden[order]
        for name, guess in guesses.items():
            gap = (guess - truth[order])[where]
            errors.setdefault(name, []).append(float(np.sqrt(np.mean(gap**2))))
    found: dict[str, Any] = {"factors": factors, "hidden": int(hidden.sum()), "seeds": seeds}
    for name, values in errors.items():
        found[name] = {"rmse": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}
    better = np.array(errors["factors, each client alone"]) - np.array(errors["factors, federated"])
    found["alone less federated"] = {"rmse": float(better.mean()), "sd": float(better.std(ddof=1))}
    return found


def federated_factors(parts: Sequence[Matrix], q: int, noise: Any, seed: int) -> FederatedFactorModel:
    return FederatedFactorModel(int(q), noise=noise, ridge=1e-3, tol=1e-4, max_iter=150, random_state=seed).fit(parts)


def about_own_means(parts: Sequence[Matrix], q: Sequence[int], noise: Any, seed: int) -> list[Matrix]:
    """Fit shared factors to the clients' data less each client's own means."""
    means = [own_mean(part) for part in parts]
    centred = [part - mean for part, mean in zip(parts, means, strict=True)]
    models = [federated_factors(centred, count, noise, seed) for count in q]
    best = min(models, key=lambda model: model.bic(centred))
    return [best.impute(part) + mean for part, mean in zip(centred, means, strict=True)]


def own_mean(part: Matrix) -> Matrix:
    """Return a client's means; for a column without values the mean of all clients, which is 0."""
    count = (~np.isnan(part)).sum(0)
    mean: Matrix = np.nansum(part, 0) / np.maximum(count, 1)
    return mean


def alone(part: Matrix, q: Sequence[int], noise: Any, seed: int) -> Matrix:
    """Impute by a client's own factor model, q by BIC, on columns with two values; elsewhere by the mean of all."""
    has = (~np.isnan(part)).sum(0) >= 2
    own = part[:, has]
    models = [federated_factors([own], count, noise, seed) for count in q if count < own.shape[1]]
    best = min(models, key=lambda model: model.bic(own))
    guess = np.zeros_like(part)
    guess[:, has] = best.impute(own)
    return guess


def people(seed: int, counts: Sequence[int]) -> tuple[dict[str, Any], Matrix, list[str]]:
    """Fit a mixture with personal weights to all people's windows, and test whether weights identify people."""
    source = hapt()
    assert source.client is not None
    x = source.x.numpy().astype(np.float64)
    features = np.concatenate([x.mean(1), np.log(x.std(1) + 1e-3)], 1)
    features = (features - features.mean(0)) / features.std(0)
    person, activity = source.client.numpy(), source.y.numpy()
    first = np.zeros(len(person), bool)
    for i in range(person.max() + 1):
        for label in range(activity.max() + 1):
            rows = np.flatnonzero((person == i) & (activity == label))
            first[rows[: len(rows) // 2]] = True
    parts, others = ([features[(person == i) & rows] for i in range(30)] for rows in (first, ~first))
    models = [
        FederatedGaussianMixture(k, personal_weights=True, reg_covar=1e-3, random_state=seed).fit(parts) for k in counts
    ]
    bics = [model.bic(parts) for model in models]
    model = models[int(np.argmin(bics))]
    again = np.stack([weights_of(model, part) for part in others])
    distance = np.sqrt(np.maximum(1 - np.sqrt(model.client_weights_) @ np.sqrt(again).T, 0))  # Hellinger
    labels = np.concatenate([model.predict(part, client=i) for i, part in enumerate(others)])
    truth = np.concatenate([activity[(person == i) & ~first] for i in range(30)])
    found = {
        "components": int(model.n_components),
        "bic": dict(zip(map(str, counts), bics, strict=True)),
        "rounds": model.n_iter_,
        "recognised": float((distance.argmin(0) == np.arange(30)).mean()),
        "rank": float(np.median([(column < column[i]).sum() + 1 for i, column in enumerate(distance.T)])),
        "adjusted_rand": adjusted_rand_score(truth, labels),
        "mutual_information": normalized_mutual_info_score(truth, labels),
        "held_out": float(np.mean(model.score(others))),
        "held_out, everybody's weights": float(np.mean(model.score(np.concatenate(others)))),
    }
    return found, model.client_weights_, list(source.client_names)


def weights_of(model: FederatedGaussianMixture, x: Matrix) -> Matrix:
    """Return maximum-likelihood weights of new examples under fixed components."""
    logs = np.log(np.maximum(model.predict_proba(x), 1e-300)) - np.log(np.maximum(model.weights_, 1e-300))
    weights: Matrix = model.weights_
    for _ in range(200):
        r = np.exp(logs - logs.max(1, keepdims=True)) * weights
        weights = (r / r.sum(1, keepdims=True)).mean(0)
    return weights


def picture(weights: Matrix, names: Sequence[str]) -> Figure:
    """Draw people in rows and components in columns, similar ones next to each other."""
    root = np.sqrt(weights)
    rows, columns = (leaves_list(linkage(m, "average", optimal_ordering=True)) for m in (root, root.T))
    gaps = np.sqrt(np.maximum(1 - root @ root.T, 0))[np.ix_(rows, rows)]
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = left.imshow(100 * weights[np.ix_(rows, columns)], aspect="auto", cmap="Blues")
    left.set(xlabel="component", title="weights of components")
    left.set_xticks(range(len(columns)), [str(k) for k in columns], fontsize=6)
    figure.colorbar(shown, ax=left, label="share of the person's windows (%)", shrink=0.8)
    near = right.imshow(gaps, cmap="viridis_r")
    right.set(title="Hellinger distance between people")
    right.set_xticks([])
    figure.colorbar(near, ax=right, shrink=0.8)
    for axes in (left, right):
        axes.set_yticks(range(len(rows)), [names[i].removeprefix("person-") for i in rows], fontsize=7)
        axes.set_ylabel("person")
    return figure


def flattened(x: torch.Tensor, rows: NDArray[np.int64]) -> Matrix:
    return x[torch.from_numpy(rows)].reshape(len(rows), -1).numpy().astype(np.float64) / 255


def main() -> None:
    parser = results.parser(__doc__, results.DOCS)
    parser.add_argument("--images", type=int, default=12_000, help="number of Fashion-MNIST's images")
    parser.add_argument("--writers", type=int, default=40, help="number of FEMNIST's writers")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds that choose the hidden values")
    given = results.parsed(parser)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    found: dict[str, Any] = {}

    def tell(name: str, result: dict[str, Any]) -> None:
        found[name] = result
        print(f"{name} ({time.perf_counter() - started:.0f} s)\n{json.dumps(result, indent=1)}", flush=True)

    source = crossbill()
    assert source.client is not None
    tell(
        "crossbill",
        imputation(source.x.flatten(1).double().numpy(), source.client.numpy(), (1, 2), "diagonal", given.seeds),
    )
    source = heart_disease()
    assert source.client is not None
    tell(
        "heart disease",
        imputation(source.x.double().numpy(), source.client.numpy(), (1, 2, 3), "diagonal", given.seeds),
    )
    result, weights, names = people(0, (6, 12, 20, 30))
    tell("people", result)
    save(picture(weights, names), given.out / "figures", "em-people")
    source = fashion_mnist()
    rows = np.sort(np.random.default_rng(0).permutation(len(source.y))[: given.images])
    labels = source.y.numpy()[rows]
    shares = dirichlet_by_class(labels, 20, 0.3, seed=0, minimum=50)
    xs, ys = [flattened(source.x, rows[share]) for share in shares], [labels[share] for share in shares]
    tell("Fashion-MNIST", images(xs, ys, 0))
    source = femnist()
    assert source.client is not None
    rows_by = [np.flatnonzero(source.client.numpy() == i) for i in range(given.writers)]
    tell("FEMNIST", images([flattened(source.x, r) for r in rows_by], [source.y.numpy()[r] for r in rows_by], 0))
    results.write(given.out / "results" / "em-real.json", found)


if __name__ == "__main__":
    main()
