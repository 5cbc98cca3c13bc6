"""Image files: every mode becomes the value that is seen, or is refused; training and queries decode alike."""

import struct
import zlib
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch import nn

from archipel import SGD, FedAvg, Federation, classification, fit
from archipel.data import Inputs, natural
from archipel.data.files import images
from archipel.data.files.images import image_form, read_image
from archipel.data.sources import image_cache
from archipel.data.sources.folders import image_folders
from archipel.data.sources.hub import from_hub
from archipel.experiments import queries
from archipel.experiments.queries import read_queries

GREYS = np.array([[0, 9000, 50000, 65535]], np.uint16)
SEEN = [[0, 35, 195, 255]]  # ⌊255 v / 65535 + ½⌋, by hand: 35.02 and 194.55


def save(tmp_path, name, image, **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.TIFF", "a.pgm"])
def test_sixteen_bits_are_scaled_to_eight(tmp_path, name):
    assert read_image(save(tmp_path, name, Image.fromarray(GREYS))).tolist() == SEEN


def test_sixteen_bits_of_either_byte_order_are_scaled(tmp_path):
    for order in ("<", ">"):
        image = Image.frombytes("I;16" if order == "<" else "I;16B", (4, 1), GREYS.astype(f"{order}u2").tobytes())
        assert read_image(save(tmp_path, "a.tif", image)).tolist() == SEEN


def tiff(values, photometric):
    """A TIFF of one strip, put together by its specification."""
    bits, kind = 8 * values.dtype.itemsize, {"u": 1, "f": 3}[values.dtype.kind]
    content = values.astype(values.dtype.newbyteorder("<")).tobytes()
    height, width = values.shape
    short = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height}
    short |= {279: len(content), 339: kind}
    tags = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in short.items())
    return b"II*\0" + struct.pack("<I", 8 + len(content)) + content + struct.pack("<H", len(short)) + tags + bytes(4)


@pytest.mark.parametrize("values", [GREYS >> 8, GREYS, (GREYS / 65535)], ids=["8 bits", "16 bits", "floats"])
def test_negatives_are_read_as_they_are_seen(tmp_path, values):
    """PhotometricInterpretation 0, WhiteIsZero: the least value is white."""
    values = values.astype({2: np.uint16, 8: np.float32}[values.itemsize] if values.max() != 255 else np.uint8)
    (tmp_path / "a.tif").write_bytes(tiff(values, photometric=1))
    positive = read_image(tmp_path / "a.tif")
    np.testing.assert_allclose(positive, SEEN, atol=1 if values.dtype == np.uint8 else 0)  # 8 bits are cut off here
    (tmp_path / "a.tif").write_bytes(tiff(values, photometric=0))
    assert (255 - read_image(tmp_path / "a.tif")).tolist() == positive.tolist()


def png(width, height, kind, depth, rows):
    """A PNG, put together by its specification."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_colours_of_sixteen_bits_keep_their_upper_eight(tmp_path):
    values = np.array([9000, 50000, 65535], ">u2")
    (tmp_path / "a.png").write_bytes(png(1, 1, 2, 16, b"\0" + values.tobytes()))
    np.testing.assert_allclose(read_image(tmp_path / "a.png")[0, 0], values / 257, atol=1)  # Pillow cuts off
    (tmp_path / "a.png").write_bytes(png(1, 1, 2, 16, b"\0" + (values // 16).astype(">u2").tobytes()))
    with pytest.raises(ValueError, match=r"a\.png can't be read: its 16-bit values use the lowest 12 bits"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("a.png", Image.fromarray(GREYS // 16), "lowest 12 bits"),
        ("a.tif", Image.fromarray(np.array([[0, 100]], np.int32)), "32 bits or with signs"),
        ("a.tif", Image.fromarray(np.array([[0.0, 200.0]], np.float32)), "floats from 0 to 1"),
        ("a.tif", Image.fromarray(np.array([[0.0, np.nan]], np.float32)), "NaN"),
    ],
)
def test_values_of_unknown_range_are_refused(tmp_path, name, image, message):
    with pytest.raises(ValueError, match=rf"{name} can't be read: .*{message}"):
        read_image(save(tmp_path, name, image))


def test_floats_from_zero_to_one_are_scaled(tmp_path):
    image = Image.fromarray(np.array([[0.0, 0.25, 1.0]], np.float32))
    assert read_image(save(tmp_path, "a.tif", image)).tolist() == [[0, 64, 255]]  # ⌊63.75 + ½⌋


@pytest.mark.parametrize(
    ("mode", "colour", "seen"),
    [
        ("1", 1, 255),
        ("L", 77, 77),
        ("LA", (40, 255), 40),
        ("LA", (40, 0), 255),  # nothing but the white behind
        ("RGB", (1, 2, 3), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 255), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), [255, 255, 255]),
        ("CMYK", (255, 0, 0, 0), [0, 255, 255]),  # 255 − C, 255 − M, 255 − Y without black
    ],
)
def test_modes_become_what_is_seen(tmp_path, mode, colour, seen):
    name = "a.tif" if mode == "CMYK" else "a.png"
    file = save(tmp_path, name, Image.new(mode, (2, 3), colour))
    assert read_image(file)[0, 0].tolist() == seen
    assert image_form(file) == (mode in ("1", "L", "LA"), 3, 2)
    assert read_image(file).shape == ((3, 2) if mode in ("1", "L", "LA") else (3, 2, 3))


def test_palettes_become_their_colours(tmp_path):
    image = Image.new("P", (1, 1), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert read_image(save(tmp_path, "a.png", image)).tolist() == [[[10, 20, 30]]]
    assert read_image(save(tmp_path, "b.png", image, transparency=1)).tolist() == [[[255, 255, 255]]]


# What an orientation means, by the EXIF standard: where the first row and the first column of the file are seen.
TURNS = {
    1: lambda x: x,
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", TURNS)
def test_photographs_are_turned_upright(tmp_path, orientation):
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = save(tmp_path, "a.png", Image.fromarray(pixels), exif=exif)
    upright = TURNS[orientation](pixels)
    assert read_image(file).tolist() == upright.tolist()
    assert image_form(file)[1:] == upright.shape


def test_pages_and_frames_are_refused(tmp_path):
    page = Image.new("L", (2, 2))
    for name in ("a.tif", "a.gif"):
        page.save(tmp_path / name, save_all=True, append_images=[Image.new("L", (2, 2), 9)])
        with pytest.raises(ValueError, match="it holds several pages or frames"):
            read_image(tmp_path / name)


def test_bombs_and_damage_are_refused_in_a_sentence(tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    file.write_bytes(png(12_000, 12_000, 0, 8, b"\0"))  # 144 million pixels, in its header
    for read in (read_image, image_form):
        with pytest.raises(ValueError, match=r"a\.png can't be read: it has 12000 × 12000 pixels; at most 100,000,000"):
            read(file)
    save(tmp_path, "a.png", Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 40), dtype=np.uint8)))
    whole = file.read_bytes()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged if seed % 2 else whole[: rng.integers(len(whole))])
        try:
            read_image(file)  # a flipped bit may be of no consequence
        except ValueError as error:
            assert "a.png can't be read: " in str(error)  # noqa: PT017 — no error is fine too


@pytest.fixture
def photographs(tmp_path):
    """Two clients' 16-bit, turned and wide images of two classes."""
    rng, exif = np.random.default_rng(0), Image.Exif()
    exif[0x0112] = 6
    for client in ("A", "B"):
        for kind in ("cat", "dog"):
            (tmp_path / "data" / client / kind).mkdir(parents=True)
            for i in range(3):
                wide = rng.integers(5000, 65535, size=(20, 30 + i)).astype(np.uint16)
                Image.fromarray(wide).save(tmp_path / "data" / client / kind / f"{i}.png", exif=exif)
    return tmp_path / "data"


@pytest.mark.parametrize("size", [8, (8, 12)])
def test_queries_are_prepared_as_training_images_are(photographs, tmp_path, size):
    source = image_folders(photographs, size=size, cache_dir=tmp_path / "cache")
    inputs = natural(source).inputs
    files = sorted(photographs.glob("*/*/*.png"))
    assert inputs.resizing == "crop"
    asked = read_queries(files, inputs).x
    assert asked.dtype == source.x.dtype
    assert (asked.numpy() == source.x.numpy()).all()
    decoded = [read_image(file) for file in files]
    assert all((inputs.prepare(pixels)[0] == x).all() for pixels, x in zip(decoded, source.x, strict=True))


def test_one_decoder_serves_training_and_queries():
    assert image_cache.read_image is queries.read_image is images.read_image


def test_images_in_memory_are_decoded_as_files_are(tmp_path):
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    deep = Image.fromarray(np.tile(GREYS, (2, 1)))
    colour = Inputs("image", (3, 2, 2), 255.0, (0.5,) * 3, (0.2,) * 3)
    grey = Inputs("image", (1, 2, 4), 255.0, (0.5,), (0.2,))
    assert colour.prepare(palette)[0, :, 0, 0].tolist() == [10, 20, 30]
    assert colour.prepare([palette, palette])[1, :, 0, 0].tolist() == [10, 20, 30]
    assert grey.prepare(deep)[0, 0, 0].tolist() == SEEN[0]
    federation = Federation.from_arrays([([palette, palette], [0, 1])], test=0.0)
    assert federation.clients[0].train["x"][0, :, 0, 0].tolist() == [10, 20, 30]
    dataset = SimpleNamespace(column_names=["image", "label", "who"], features={}, info=None)
    rows = {"image": [palette, deep.resize((2, 2))], "label": [0, 1], "who": ["a", "b"]}
    part = type("Rows", (), {**vars(dataset), "__len__": lambda self: 2, "__getitem__": lambda self, rows_: rows})()
    with pytest.raises(ValueError, match="column 'image' holds values of different shapes"):
        from_hub(part, client="who")
    rows["image"] = [palette, palette]
    assert from_hub(part, client="who").x[:, :, 0, 0].tolist() == [[10, 20, 30]] * 2
    rows["image"] = [Image.fromarray(GREYS // 16)] * 2
    with pytest.raises(ValueError, match="column 'image' holds an image that can't be used: its 16-bit values"):
        from_hub(part, client="who")


class Flat(nn.Module):
    """Pixels as features."""

    def forward(self, x):
        return x.flatten(1)


def test_photographs_are_answered_as_they_were_evaluated(tmp_path):
    """The classes differ in the middle of wide images; their edges say the opposite, and are cropped."""
    rng = np.random.default_rng(0)
    for client, kind in product("AB", ("dark", "light")):
        (tmp_path / "data" / client / kind).mkdir(parents=True)
        for i in range(8):
            wide = np.full((20, 60), 255 if kind == "dark" else 0, np.uint8)
            wide[:, 20:40] = rng.integers(90, size=(20, 20)) + (0 if kind == "dark" else 160)
            Image.fromarray(wide).save(tmp_path / "data" / client / kind / f"{i}.png")
    federation = natural(image_folders(tmp_path / "data", size=16, cache_dir=tmp_path / "cache"))
    run = fit(FedAvg(classification(Flat(), federation), SGD(lr=0.05, steps=20)), federation, rounds=5)
    assert run.metrics["global_accuracy"] == 1.0
    files = sorted((tmp_path / "data").glob("*/*/*.png"))
    named = [file.parent.name for file in files]
    assert run.predict(read_queries(files, run.facts.inputs).x).labels == named
    assert [run.predict(np.asarray(Image.open(file))).labels[0] for file in files] == named
    assert [run.predict(Image.open(file)).labels[0] for file in files] == named
