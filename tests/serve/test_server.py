"""The server over real loopback: right answers, refusals in a sentence, and nothing of a query in its log."""

import hashlib
import io
import json
import random
import signal
import ssl
import struct
import subprocess
import sys
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

# Float32 in another order, of numbers below 1; the promise of the export.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def server(serving, router_bundle):
    with serving(router_bundle) as started:
        yield started


@pytest.fixture(scope="module")
def pictures(serving, image_bundle):
    with serving(image_bundle) as started:
        yield started


def probabilities(content):
    return np.array([list(answer["probabilities"].values()) for answer in content["answers"]])


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def form(name, data, **fields):
    parts = [f'--xyz\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()]
    head = f'--xyz\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return b"".join([*parts, head, data, b"\r\n--xyz--\r\n"]), {"Content-Type": "multipart/form-data; boundary=xyz"}


def test_routes_and_answers_are_the_runs(server, router_run, uneven):
    x = uneven.clients[2].test["x"].numpy()
    for prior in (None, "uniform", [0.1, 0.2, 0.3, 0.4]):
        body = {"x": x.tolist(), "top": 4} | ({} if prior is None else {"prior": prior})
        status, found = server.ask("/route", body)
        assert status == 200
        expected, names = router_run.route(x, prior), router_run.facts.names
        ranked = [{one["site"]: one["probability"] for one in route["top"]} for route in found["routes"]]
        np.testing.assert_allclose([[r[n] for n in names] for r in ranked], expected.probabilities.numpy(), **CLOSE)
        assert [route["site"] for route in found["routes"]] == [names[i] for i in expected.clients.tolist()]
        status, found = server.ask("/answer", body)
        answer = router_run.predict(x, prior=prior)
        np.testing.assert_allclose(probabilities(found), answer.values.numpy(), **CLOSE)
        assert [one["answered_by"] for one in found["answers"]] == answer.answered_by
        assert [one["label"] for one in found["answers"]] == answer.labels
    _, found = server.ask("/answer", {"x": x.tolist(), "site": names[1]})
    np.testing.assert_allclose(probabilities(found), router_run.predict(x, 1).values.numpy(), **CLOSE)
    assert server.ask("/answer", {"x": []})[0] in (200, 422)


def test_archives_images_and_forms_are_read(server, pictures, router_run, image_run, uneven):
    x = uneven.clients[0].test["x"].numpy()
    kind = {"Content-Type": "application/npz"}
    _, found = server.ask("/answer?site=1", npz(x=x), kind)
    np.testing.assert_allclose(probabilities(found), router_run.predict(x, 1).values.numpy(), **CLOSE)
    _, found = server.ask("/answer", *form("x.npz", npz(x=x), site=1))
    np.testing.assert_allclose(probabilities(found), router_run.predict(x, 1).values.numpy(), **CLOSE)
    image = np.random.default_rng(0).integers(0, 256, (9, 12), np.uint8)
    expected = image_run.predict(image)
    for body, headers in ((png(image), {"Content-Type": "image/png"}), form("a.png", png(image))):
        status, found = pictures.ask("/answer", body, headers)
        assert status == 200, found
        np.testing.assert_allclose(probabilities(found), expected.values.numpy(), **CLOSE)
        assert found["answers"][0]["answered_by"] == "vote"
    assert pictures.ask("/route", {"x": image.tolist()})[0] == 409


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bombs():
    """PNGs of 10^8 and 10^10 pixels in a few bytes, and an archive that unpacks to 300 MB."""
    pictures = []
    for side in (10_000, 100_000):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
        data = chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
        pictures.append(b"\x89PNG\r\n\x1a\n" + header + data)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (25_000_000, 3)})
        for _ in range(300):
            member.write(bytes(1_000_000))
    return *pictures, buffer.getvalue()


def test_bad_input_gets_a_sentence(server, pictures):
    picture, larger, archive = bombs()
    arrays = {"Content-Type": "application/npz"}
    images = {"Content-Type": "image/png"}
    pickled = npz(x=np.array([{"a": 1}], dtype=object))
    cases = [
        (server, b"{", {}, 400, "The body isn't JSON that can be read"),
        (server, b"[" * 100_000, {}, 400, "The body isn't JSON that can be read"),
        (server, b"\xff\xfe", {}, 400, "The body isn't JSON that can be read"),
        (server, [1, 2], {}, 422, "The body must be a JSON object"),
        (server, {"y": 1}, {}, 422, "Unknown field 'y'"),
        (server, {}, {}, 422, 'Give either "x"'),
        (server, {"x": [[1, 2]]}, {}, 422, r"x has shape (1, 2); expected is one example (3,)"),
        (server, {"x": [[1, 2, 3], [1]]}, {}, 422, "its rows have different lengths"),
        (server, {"x": [["a", "b", "c"]]}, {}, 422, "numbers are needed"),
        (server, {"x": [[1, None, 3]]}, {}, 422, "NaN or infinite values"),
        (server, b'{"x": [[1, NaN, 3]]}', {}, 422, "NaN or infinite values"),
        (server, b'{"x": [[1, 1e400, 3]]}', {}, 422, "NaN or infinite values"),
        (server, {"x": [[1, 10**30, 3]]}, {}, 200, ""),
        (server, {"x": [[1, 10**60, 3]]}, {}, 422, "too large for float32"),
        (server, {"x": [[1, 2, 3]], "site": "Atlantis"}, {}, 422, "There is no site 'Atlantis'"),
        (server, {"x": [[1, 2, 3]], "prior": [1, 2]}, {}, 422, "share of 0 or above for each of the 4 sites"),
        (server, {"x": [[1, 2, 3]], "prior": {"a": 1}}, {}, 422, "share of 0 or above"),
        (server, {"x": [[1, 2, 3]], "top": 0}, {}, 422, '"top" must be a whole number'),
        (server, {"x": [[1, 2, 3]], "columns": ["a", "b", "c"]}, {}, 200, ""),
        (server, {"features": {"a": 1}}, {}, 422, '"features" must be an object of'),
        (server, {"features": {"features_0": [[1.0]]}}, {}, 422, "features_0 has shape (1, 1); expected is (n, 5)"),
        (server, {"features": {"features_0": "abc"}}, {}, 422, "aren't arrays of numbers"),
        (server, {"features": {"features_0": [[1, 2, 3, 4, None]]}}, {}, 422, "must be finite"),
        (server, b"PK\x03\x04junk", arrays, 400, "The archive can't be read"),
        (server, npz(y=np.zeros(3)), arrays, 400, "it holds no array x"),
        (server, pickled, arrays, 400, "Python objects, which aren't read"),
        (server, archive, arrays, 400, "unpacks to more than"),
        (server, npz(x=np.zeros((2, 3), complex)), arrays, 422, "numbers are needed"),
        (server, png(np.zeros((8, 8), np.uint8)), images, 415, "not images"),
        (server, b"x", {"Content-Type": "text/plain"}, 415, "isn't read; send application/json"),
        (server, b"x", {"Content-Type": "multipart/form-data"}, 400, "The form can't be read"),
        (pictures, picture, images, 400, "at most 20,000,000 are read"),
        (pictures, larger, images, 400, "The image can't be read"),
        (pictures, b"GIF89a", images, 400, "The image can't be read"),
        (pictures, png(np.eye(64, dtype=np.uint8))[:60], images, 400, "The image can't be read"),
        (pictures, {"x": [[300] * 8] * 8}, {}, 422, "grey values are whole numbers from 0 to 255"),
    ]
    for target, body, headers, status, sentence in cases:
        found = target.ask("/answer", body, {"Content-Type": "application/json", **headers})
        shown = body if not isinstance(body, bytes) else body[:40]
        assert found[0] == status, (shown, found)
        assert status == 200 or sentence in found[1]["detail"], (shown, found)
    assert server.ask("/nowhere", {})[0] == 404
    assert server.ask("/answer")[0] == 405


def test_an_answer_that_is_not_finite_is_refused(serving, steep_bundle):
    with serving(steep_bundle) as server:
        assert server.ask("/answer", {"x": [1, 2, 3]})[0] == 200
        for body in ({"x": [1e30, 2, 3]}, {"x": [1e30, 2, 3], "site": "0"}, {"x": [[1, 2, 3], [3e38, -3e38, 0]]}):
            status, found = server.ask("/answer", body)
            assert status == 422
            assert "isn't finite" in found["detail"]


def test_a_hundred_megabytes_are_refused_before_they_are_read(server):
    before = server.memory()
    line = server.connect()
    line.putrequest("POST", "/answer")
    line.putheader("Content-Length", str(100 << 20))
    line.endheaders()
    response = line.getresponse()  # nothing of the body was sent
    assert response.status == 413
    assert "larger than" in json.loads(response.read())["detail"]
    line.close()
    line = server.connect()
    line.putrequest("POST", "/answer")
    line.putheader("Transfer-Encoding", "chunked")
    line.endheaders()
    block = bytes(1 << 20)
    with pytest.raises((ConnectionError, TimeoutError)):  # noqa: PT012 (the server hangs up at some block)
        for _ in range(100):
            line.send(b"%x\r\n" % len(block) + block + b"\r\n")
        line.send(b"0\r\n\r\n")
        if line.getresponse().status == 413:
            raise ConnectionError
    line.close()
    # 16 MiB are read at most, and may be held twice.
    assert server.memory() - before < 64 << 20
    assert server.ask("/health")[0] == 200


def fuzzed(generator, known):
    """Return a random request, which is likely to be bad."""
    kinds = ["application/json", "application/npz", "image/png", "multipart/form-data; boundary=xyz", "text/plain", ""]
    path = generator.choice(["/answer", "/route", "/answer?site=1", "/route?top=x", "/answer?prior=a"])
    body = bytearray(generator.choice(known))
    for _ in range(generator.choice([0, 1, 3, 20])):
        where = generator.randrange(len(body) + 1)
        action = generator.randrange(4)
        if action == 0:
            body[where:where] = generator.randbytes(generator.randrange(1, 20))
        elif action == 1:
            del body[where : where + generator.randrange(1, 20)]
        elif action == 2 and where < len(body):
            body[where] = generator.randrange(256)
        else:
            body[where:where] = generator.choice([b"NaN", b"1e999", b"[", b"{", b"null", b'"', b"-", b"\x00"])
    return path, bytes(body), {"Content-Type": generator.choice(kinds)}


def send_fuzzed(server, count, seed):
    x = np.random.default_rng(0).normal(size=(2, 3)).round(3)
    known = [json.dumps({"x": x.tolist(), "top": 2}).encode(), json.dumps({"x": x[0].tolist(), "site": "1"}).encode()]
    known += [npz(x=x), png(np.zeros((8, 8), np.uint8)), form("a.npz", npz(x=x), top=1)[0]]
    generator, statuses, line = random.Random(seed), {}, server.connect()
    for _ in range(count):
        path, body, headers = fuzzed(generator, known)
        try:
            status, content = server.ask(path, body, headers, line)
        except (ConnectionError, OSError):  # it may hang up on a bad request, and must take the next one
            line.close()
            line = server.connect()
            status, content = server.ask(path, body, headers, line)
        statuses[status] = statuses.get(status, 0) + 1
        assert 200 <= status < 500, (path, body, headers, content)
        assert status == 200 or content["detail"].endswith("."), content
    line.close()
    return statuses


def test_fuzzed_requests_get_no_server_error(server, pictures):
    statuses = send_fuzzed(server, 1200, 0)
    assert statuses.keys() >= {200, 400, 415, 422}
    assert send_fuzzed(pictures, 800, 1).keys() >= {200, 400, 422}
    for one in (server, pictures):
        assert one.ask("/health")[0] == 200
        assert "Traceback" not in one.logged()


@pytest.mark.soak
def test_a_hundred_thousand_fuzzed_requests_leave_memory_flat(server):
    send_fuzzed(server, 10_000, 2)
    before = server.memory()
    send_fuzzed(server, 90_000, 3)
    # Nothing grows with requests: an allocator's arenas may.
    assert server.memory() - before < 32 << 20
    assert server.ask("/health")[0] == 200


def test_sixty_four_clients_at_a_time_get_their_own_answers(server, router_run):
    generator = np.random.default_rng(3)
    queries = [generator.normal(size=(generator.integers(1, 6), 3)).astype(np.float32) for _ in range(256)]
    expected = [router_run.predict(x).values.numpy() for x in queries]

    def ask(i):
        return probabilities(server.ask("/answer", {"x": queries[i].tolist()})[1])

    with ThreadPoolExecutor(64) as pool:
        for found, right in zip(pool.map(ask, range(256)), expected, strict=True):
            np.testing.assert_allclose(found, right, **CLOSE)


def test_queries_are_counted_and_never_logged(server):
    secret = 123.456789
    before = server.ask("/metrics")[1].decode()
    server.ask("/answer", {"x": [[secret, 2, 3]]})
    server.ask("/answer", {"x": [[secret, "no", 3]]})
    after = server.ask("/metrics")[1].decode()

    def value(text, name):
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    name = 'archipel_requests_total{endpoint="answer",status="422"}'
    assert value(after, name) - value(before, name) == 1
    name = 'archipel_queries_total{endpoint="answer"}'
    assert value(after, name) - value(before, name) == 1
    assert "answer 422" in server.logged()
    assert "123.4" not in server.logged() + after


def test_the_interface_is_described_with_an_example_that_works(server, pictures):
    for one in (server, pictures):
        described = one.ask("/openapi.json")[1]
        for path in set(described["paths"]) & {"/route", "/answer"}:
            body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            example = next(iter(body["examples"].values()))["value"]
            status, found = one.ask(path, example)
            assert status == 200
            shown = described["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["example"]
            kind = "routes" if path == "/route" else "answers"
            assert set(found[kind][0]) == set(shown[kind][0])


def certificate(folder):
    pair = folder / "key.pem", folder / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*made, "-keyout", pair[0], "-out", pair[1], *names], check=True, timeout=30, capture_output=True)
    return pair


def test_other_machines_need_keys_and_tls(serving, router_bundle, tmp_path):
    refused = subprocess.run(
        [sys.executable, "-m", "archipel_serve", router_bundle, "--host", "0.0.0.0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "give --keys and --tls-cert with --tls-key, or listen at 127.0.0.1" in refused.stderr
    private, public = certificate(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text(f"# ours\nward {hashlib.sha256(b'sesame').hexdigest()}\n")
    options = ["--host", "0.0.0.0", "--keys", keys, "--tls-cert", public, "--tls-key", private]
    with serving(router_bundle, *options) as server:
        context = ssl.create_default_context(cafile=public)

        def ask(path, headers, body=None):
            try:
                request = Request(server.url + path, body, {"Content-Type": "application/json", **headers})
                with urlopen(request, timeout=30, context=context) as response:
                    return response.status
            except OSError as error:
                return error.code

        query = json.dumps({"x": [1, 2, 3]}).encode()
        assert ask("/answer", {}, query) == 401
        assert ask("/answer", {"Authorization": "Bearer open"}, query) == 401
        assert ask("/answer", {"Authorization": "Bearer sesame"}, query) == 200
        assert ask("/answer", {"X-API-Key": "sesame"}, query) == 200
        assert ask("/metrics", {}) == 401
        assert ask("/health", {}) == 200
        assert "sesame" not in server.logged()


def test_a_caller_who_asks_too_often_is_told_to_wait(serving, router_bundle):
    # Two at once, and then one in twenty minutes.
    with serving(router_bundle, "--rate", "0.0008") as server:
        found = [server.ask("/answer", {"x": [1, 2, 3]}) for _ in range(3)]
        assert [status for status, _ in found] == [200, 429, 429]
        assert "ask again" in found[-1][1]["detail"]


def test_a_stop_lets_requests_in_progress_end(serving, router_bundle):
    with serving(router_bundle) as server:
        x = np.zeros((2000, 3)).tolist()
        line = server.connect()
        body = json.dumps({"x": x}).encode()
        line.putrequest("POST", "/answer")
        line.putheader("Content-Length", str(len(body)))
        line.endheaders(body[:100])  # in progress: the rest comes after the signal
        server.ask("/health")
        server.process.send_signal(signal.SIGTERM)
        line.send(body[100:])
        assert line.getresponse().status == 200
        line.close()
        assert server.stop() in (0, -signal.SIGTERM)


def test_a_damaged_bundle_is_not_served(router_bundle, tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "archipel_serve", tmp_path], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 1
    assert "is no bundle" in found.stderr
    assert "Traceback" not in found.stderr
