"""BatchNorm's statistics: torch's own module as the witness, and the three policies kept to the letter."""

import copy

import pytest
import torch
from torch import nn

from archipel import SGD, FedAvg, classification, fit
from archipel.core import keys
from archipel.core.examples import Examples
from archipel.core.trees import leaves, nbytes
from archipel.engines import Loop
from archipel.engines.setting import Setting
from archipel.learning import batch_norm as batchnorm

TRAINING = SGD(lr=0.1, steps=3, batch=5)


def encoder():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())


def statistics(buffers):
    return buffers["1"]["running_mean"], buffers["1"]["running_var"], buffers["1"]["num_batches_tracked"]


def torch_model(task, params):
    """Torch's own module and head with these parameters."""
    module = copy.deepcopy(task.encoder.module)
    head = nn.Linear(4, 3)
    with torch.no_grad():
        for name, value in module.named_parameters():
            part, leaf = name.split(".")
            value.copy_(params["encoder"][part][leaf])
        head.weight.copy_(params["head"]["weight"])
        head.bias.copy_(params["head"]["bias"])
    return module, head


def test_running_statistics_are_torchs(uneven):
    task = classification(encoder(), uneven)
    params, key = task.init(keys.key(0)), keys.key(1)
    examples = Examples.of(uneven.clients[2].train)
    end = TRAINING.minimise(task.loss, params, examples, key, TRAINING.rate(0, 1)).params

    module, head = torch_model(task, params)
    model = nn.Sequential(module, head).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = TRAINING.plan(examples, key)
    for index, mask in zip(plan.index, plan.mask, strict=True):
        batch = examples.take(index[mask])
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(uneven.inputs.normalise(batch["x"])), batch["y"]).backward()
        optimiser.step()
    # three float32 steps
    for ours, theirs in zip(statistics(end["buffers"]), module[1].buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(end["head"]["weight"], head.weight.detach(), rtol=1e-5, atol=1e-6)
    assert statistics(params["buffers"])[2] == 0  # the start was not written to


def test_share_averages_statistics_with_the_rest(uneven):
    task = classification(encoder(), uneven)
    algorithm = FedAvg(task, TRAINING, batch_norm="share")
    ends = []

    class Watched(Loop):
        def run(self, step, message, ids, key, *, training):
            for outcome in super().run(step, message, ids, key, training=training):
                if training and outcome.replies:
                    ends.append(outcome.replies["model"]["buffers"])
                yield outcome

    run = fit(algorithm, uneven, rounds=1, setting=Setting(engine=Watched))
    weights = uneven.sizes.double() / uneven.sizes.sum()
    for which in (0, 1):
        values = torch.cat([statistics(end)[which] for end in ends]).double()
        torch.testing.assert_close(
            statistics(run.server["model"]["buffers"])[which].double(), weights @ values, rtol=1e-6, atol=1e-7
        )
    assert statistics(run.server["model"]["buffers"])[2] == 3
    assert [leaves(client) for client in run.clients] == [[]] * 4


def test_local_statistics_stay_with_their_client(uneven):
    task = classification(encoder(), uneven)
    params = task.init(keys.key(0))
    run = fit(FedAvg(task, TRAINING, batch_norm="local"), uneven, rounds=2)
    learnt = nbytes({name: tree for name, tree in params.items() if name != "buffers"})
    for record in run.history:
        assert record["uplink"] == 4 * (learnt + 4)  # the loss is a float32
    # The server's are those it began with, the clients' have seen six batches each, and differ.
    assert statistics(run.server["model"]["buffers"])[2] == 0
    assert [int(statistics(client["buffers"])[2]) for client in run.clients] == [6] * 4
    assert not torch.equal(*(statistics(run.clients[i]["buffers"])[0] for i in (0, 1)))
    # and each client predicts by its own
    x = uneven.clients[0].test["x"]
    for client in run.clients:
        expected = task.predict(run.server["model"] | {"buffers": client["buffers"]}, x)
        assert torch.equal(run.algorithm.predict(run.server, client, x), expected)


def test_recompute_is_torchs_cumulative_average_over_each_clients_data(uneven):
    task = classification(encoder(), uneven)
    run = fit(FedAvg(task, TRAINING, batch_norm="recompute"), uneven, rounds=2)
    model = run.server["model"]
    means, variances = [], []
    for client in uneven.clients:
        module, _ = torch_model(task, model)
        module[1].reset_running_stats()
        module[1].momentum = None
        with torch.no_grad():
            module.train()(uneven.inputs.normalise(client.train["x"]))
        means.append(module[1].running_mean)
        variances.append(module[1].running_var)
    weights = uneven.sizes.double() / uneven.sizes.sum()
    found = statistics(model["buffers"])
    for ours, theirs in zip(found[:2], (means, variances), strict=True):
        torch.testing.assert_close(ours.double(), weights @ torch.stack(theirs).double(), rtol=1e-5, atol=1e-6)
    assert task.encoder.module[1].momentum == 0.1  # the module is as it was


def test_recompute_averages_over_batches(uneven):
    task = classification(encoder(), uneven)
    params, train = task.init(keys.key(0)), uneven.clients[2].train
    found = batchnorm.recompute(task.loss, task, params, Examples.of(train), size=10)
    module, _ = torch_model(task, params)
    module[1].reset_running_stats()
    module[1].momentum = None
    with torch.no_grad():
        for x in train["x"].split(10):
            module.train()(uneven.inputs.normalise(x))
    for ours, theirs in zip(statistics(found), module[1].buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["local", "recompute"])
def test_statistics_of_training_never_leave_where_the_policy_says_so(uneven, policy):
    sent = []

    class Watched(Loop):
        def run(self, step, message, ids, key, *, training):
            for outcome in super().run(step, message, ids, key, training=training):
                if step.__name__ == "train":
                    sent.append(outcome.replies["model"])
                yield outcome

    fit(
        FedAvg(classification(encoder(), uneven), TRAINING, batch_norm=policy),
        uneven,
        rounds=1,
        setting=Setting(engine=Watched),
    )
    assert len(sent) == 4
    assert all(set(model) == {"encoder", "head"} for model in sent)


@pytest.mark.parametrize("policy", ["share", "local", "recompute"])
def test_batchnorm_asked_to_be_batched_falls_back_to_the_loop(uneven, policy, caplog):
    algorithm = FedAvg(classification(encoder(), uneven), TRAINING, batch_norm=policy)
    looped, batched = (
        fit(algorithm, uneven, rounds=2, setting=Setting(engine=engine)) for engine in ("loop", "batched")
    )
    for one, other in zip(leaves(looped.server), leaves(batched.server), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert [r.message for r in caplog.records if "can't be batched" in r.message]


def test_without_buffers_the_policies_are_one(uneven):
    task = classification(nn.Linear(3, 4), uneven)
    runs = [
        fit(FedAvg(task, TRAINING, batch_norm=policy), uneven, rounds=2) for policy in ("share", "local", "recompute")
    ]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(leaves(runs[0].server), leaves(run.server), strict=True))


def test_a_minibatch_of_one_is_told_with_what_to_do(uneven):
    left = next(n for n in uneven.sizes.tolist() if n > 2) - 1
    algorithm = FedAvg(classification(encoder(), uneven), SGD(epochs=1, batch=left))
    with pytest.raises(ValueError, match=r"can't normalise a minibatch of one example.* Change the solver's batch"):
        fit(algorithm, uneven, rounds=1)


def test_another_policy_is_refused(uneven):
    with pytest.raises(ValueError, match="batch_norm must be 'share', 'local' or 'recompute'; given 'average'"):
        FedAvg(classification(encoder(), uneven), TRAINING, batch_norm="average")


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4, track_running_stats=False), nn.SyncBatchNorm(4, track_running_stats=False)]
)
def test_batch_norm_without_running_statistics_is_refused(uneven, layer):
    """Its answers to a query depend on the queries beside it."""
    encoder = nn.Sequential(nn.Linear(3, 4), layer)
    said = rf"submodule 1 \({type(layer).__name__}\) has track_running_stats=False.*or GroupNorm or LayerNorm"
    with pytest.raises(ValueError, match=said):
        classification(encoder, uneven)
