"""FedAvg in FedJAX: its own algorithm, with the backend that is compiled as a whole or that maps over devices."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import numpy as np
import shards
from pace import Pace


def main(work: dict[str, Any], devices: int = 1) -> None:
    if devices > 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    pace = Pace()
    import jax
    import jax.numpy as jnp

    # FedJAX's last release is older than the removal of this name from JAX; newer versions of JAX are no slower.
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree_util.tree_map
    import fedjax

    rng = np.random.default_rng(0)
    channels, height, width = work["shape"]
    x, y = shards.read(work)
    x = x.reshape(len(x), -1) if work["network"] != "cnn" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))

    def layer(*shape: int) -> dict[str, Any]:
        """Draw a layer as torch does: uniform on ±1/√(inputs)."""
        bound = 1 / math.sqrt(math.prod(shape[:-1]))
        return {
            "w": rng.uniform(-bound, bound, shape).astype(np.float32),
            "b": rng.uniform(-bound, bound, shape[-1:]).astype(np.float32),
        }

    def convolve(p: Any, z: Any) -> Any:
        z = jax.lax.conv_general_dilated(z, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        z = jax.nn.relu(z + p["b"])
        return jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def dense(p: Any, z: Any) -> Any:
        return z @ p["w"] + p["b"]

    if work["network"] == "cnn":
        params = {
            "one": layer(3, 3, channels, 32),
            "two": layer(3, 3, 32, 64),
            "hidden": layer(64 * (height // 4) * (width // 4), 128),
            "head": layer(128, work["classes"]),
        }
    elif work["network"] == "mlp":
        params = {"hidden": layer(x.shape[1], work["hidden"]), "head": layer(work["hidden"], work["classes"])}
    else:
        params = {"head": layer(x.shape[1], work["classes"])}

    def outputs(p: Any, z: Any) -> Any:
        if "one" in p:
            z = convolve(p["two"], convolve(p["one"], z))
            z = z.reshape(len(z), -1)
        if "hidden" in p:
            z = jax.nn.relu(dense(p["hidden"], z))
        return dense(p["head"], z)

    def loss(p: Any, batch: Any, rng: Any) -> Any:
        logs = jax.nn.log_softmax(outputs(p, batch["x"]))
        return -jnp.take_along_axis(logs, batch["y"][:, None], 1).mean()

    clients = {
        b"%d" % i: {"x": x[place], "y": y[place].astype(np.int32)}
        for i, place in enumerate(shards.places(work, len(x)))
    }
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), num_clients=work["cohort"], seed=0
    )
    momentum = work["momentum"] or None
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work["lr"], momentum=momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work["batch"], num_epochs=work["epochs"], drop_remainder=False),
    )
    fedjax.set_for_each_client_backend("pmap" if devices > 1 else "jit")
    begun = params
    state = algorithm.init(params)

    def moved() -> float:
        pairs = zip(jax.tree_util.tree_leaves(state.params), jax.tree_util.tree_leaves(begun), strict=True)
        return float(sum(((a - b) ** 2).sum() for a, b in pairs)) ** 0.5

    while True:
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        pace.mark(moved)


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    main(spec["work"], **spec["options"])
