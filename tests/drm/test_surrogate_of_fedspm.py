"""The surrogate of archipel.drm and the loss that FedSPM trains on are one function."""

import numpy as np
import torch
from torch import nn

from archipel import SGD, FedSPM, Network, classification, fit
from archipel.drm import balancing, multipliers, surrogate


def test_fedspms_loss_summed_over_clients_is_the_surrogate(uneven):
    block = SGD(lr=0.1, steps=3, batch=8)
    spm = FedSPM(classification(nn.Linear(3, 4), uneven), Network(nn.Linear(3, 4), uneven.inputs), 2, block, block)
    run = fit(spm, uneven, rounds=2)
    ratio, tau = run.server["ratio"], run.server["tau"]
    total, ratios, shares = 0.0, [], []
    for i, (client, state) in enumerate(zip(uneven.clients, run.clients, strict=True)):
        x, w = client.train["x"], state["responsibilities"].values[: len(client.train["y"])]
        losses, _ = spm.ratio_loss(ratio, {"x": x, "w": w}, tau, torch.tensor(i))
        total += float(losses.double().sum())
        ratios.append(spm.log_ratios(ratio, x)[0].flatten(1))
        shares.append(torch.zeros(len(x), 4, 2).index_copy(1, torch.tensor([i]), w[:, None]).flatten(1))
    a, w = torch.cat(ratios), torch.cat(shares)
    constant = float(torch.special.xlogy(w.sum(0), w.sum(0)).sum())
    # float32 losses of some dozens of examples
    np.testing.assert_allclose(-float(surrogate(a, w)) - constant, total, rtol=1e-5)
    balanced = a.double() + balancing(a, tau.flatten())
    found = multipliers(balanced)
    assert found.inside
    share = tau.flatten().double() / tau.sum()
    weights = 1 / (len(a) * (balanced.exp() @ share))
    torch.testing.assert_close(found.weights, weights, rtol=1e-6, atol=0)  # eq. (5) with λ = τ/n
