"""A router that sends queries on to the sites' own servers, and to the next one where a server is down."""

import json

import numpy as np
import pytest

from archipel.serving import export_bundle

# Float32 in another order, of numbers below 1; the promise of the export.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("send", ["query", "features"])
def test_sites_answer_and_the_next_one_where_one_is_down(send, serving, router_run, router_bundle, uneven, tmp_path):
    names = router_run.facts.names
    x = np.concatenate([client.test["x"].numpy() for client in uneven.clients])
    posterior = router_run.route(x).probabilities.numpy()
    order = np.argsort(-posterior, axis=1, kind="stable")
    first, second = names[order[0, 0]], names[order[0, 1]]
    own = {name: export_bundle(router_run, tmp_path / name, site=name) for name in (first, second)}
    with serving(own[first]) as one, serving(own[second]) as other:
        sites = {first: {"url": one.url, "send": send}, second: {"url": other.url, "send": send}}
        file = tmp_path / "sites.json"
        file.write_text(json.dumps(sites))
        with serving(router_bundle, "--sites", file) as router:
            status, found = router.ask("/answer", {"x": x.tolist()})
            assert status == 200, found
            up = [names.index(first), names.index(second)]
            for i, answer in enumerate(found["answers"]):
                chosen = next(s for s in order[i] if s in up)
                assert answer["answered_by"] == names[chosen]
                assert answer["site"] == names[order[i, 0]]
                passed = [names[s] for s in order[i] if posterior[i, s] > posterior[i, chosen]]
                assert list(answer.get("unavailable", {})) == passed
                expected = router_run.predict(x[i], chosen).values.numpy()[0]
                np.testing.assert_allclose(list(answer["probabilities"].values()), expected, **CLOSE)
            one.stop()
            status, found = router.ask("/answer", {"x": x[:1].tolist()})
            assert status == 200
            assert found["answers"][0]["answered_by"] == second
            assert "can't be reached" in found["answers"][0]["unavailable"][first]
            other.stop()
            status, found = router.ask("/answer", {"x": x[:1].tolist()})
            assert status == 503
            assert "No site's server answers" in found["detail"]
