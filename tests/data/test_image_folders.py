"""Images in folders: FLamby's Fed-ISIC2019 and a user's own, decoded once into a file that is mapped."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from archipel.data.natural import natural
from archipel.data.sources import image_cache
from archipel.data.sources.flamby import IMAGES, LESIONS, fed_isic2019
from archipel.data.sources.folders import image_folders
from archipel.data.sources.source import content_checksum


def save(file, width=8, height=6, colour=(0, 0, 0), mode="RGB"):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (width, height), colour).save(file)


ROWS = [  # image, target, centre, fold
    ("ISIC_3", 1, 2, "test"),
    ("ISIC_1", 0, 0, "train"),
    ("ISIC_4_downsampled", 7, 2, "train"),
    ("ISIC_0", 3, 0, "test"),
    ("ISIC_2", 2, 0, "train"),
]


@pytest.fixture
def isic(tmp_path):
    """Five images of different widths in FLamby's layout; each has a colour of its own."""
    folder = tmp_path / "fed_isic2019"
    for number, (image, *_) in enumerate(ROWS):
        save(folder / IMAGES / f"{image}.jpg", width=16 + 2 * number, height=16, colour=(40 * number, 100, 200))
    write_split(folder, ROWS)
    return tmp_path


def write_split(folder, rows, drop=()):
    with (folder / "train_test_split").open("w", newline="") as file:
        columns = [name for name in ("image", *LESIONS, "UNK", "target", "center", "fold", "fold2") if name not in drop]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for image, target, centre, fold in rows:
            hot = {name: float(name == LESIONS[target]) if target in range(8) else 0.0 for name in LESIONS}
            row = {"image": image, "UNK": 0.0, "target": target, "center": centre, "fold": fold}
            writer.writerow(row | hot | {"fold2": f"{fold}_{centre}"})


def load(folder, cache, **options):
    return fed_isic2019(folder, size=16, verify=False, cache_dir=cache, **options)


def test_centres_folds_and_lesions_are_flambys(isic, tmp_path):
    source = load(isic, tmp_path / "cache")
    assert source.x.shape == (5, 3, 16, 16)
    assert source.x.dtype == torch.uint8
    # By centre, training before test, otherwise in the order of the file.
    order = ["ISIC_1", "ISIC_2", "ISIC_0", "ISIC_4_downsampled", "ISIC_3"]
    numbers = [[image for image, *_ in ROWS].index(name) for name in order]
    assert (source.x[:, 0].float().mean((1, 2)) / 40).round().tolist() == numbers
    assert source.y.tolist() == [0, 2, 3, 7, 1]
    assert source.client.tolist() == [0, 0, 0, 2, 2]
    assert source.test.tolist() == [False, False, True, False, True]
    assert len(source.client_names) == 6
    assert source.checksum == content_checksum(source.x.numpy(), source.y.numpy())


def test_a_federation_of_centres_is_mapped_and_not_copied(isic, tmp_path):
    source = load(isic, tmp_path / "cache")
    federation = natural(source, minimum=2, limit=2)
    assert [client.name for client in federation.clients] == ["BCN", "HAM vidir modern"]
    assert [len(client.test["y"]) for client in federation.clients] == [1, 1]
    for client in federation.clients:
        assert client.train["x"].untyped_storage().data_ptr() == source.x.untyped_storage().data_ptr()


def test_images_are_decoded_once_until_they_change(isic, tmp_path, monkeypatch):
    first = load(isic, tmp_path / "cache")

    def never(file):
        raise AssertionError("decoded again")

    with monkeypatch.context() as patched:
        patched.setattr(image_cache, "read_image", never)
        assert load(isic, tmp_path / "cache").checksum == first.checksum
    save(isic / "fed_isic2019" / IMAGES / "ISIC_0.jpg", 30, 20, (255, 255, 255))
    assert load(isic, tmp_path / "cache").checksum != first.checksum
    assert fed_isic2019(isic, size=8, verify=False, cache_dir=tmp_path / "cache").x.shape == (5, 3, 8, 8)


def test_writing_to_the_tensor_leaves_the_file(isic, tmp_path):
    source = load(isic, tmp_path / "cache")
    source.x.zero_()
    assert load(isic, tmp_path / "cache").x.max() > 0


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_no_partial_cache(isic, tmp_path, monkeypatch, stop):
    cache, read, done = tmp_path / "cache", image_cache.read_image, []

    def interrupted(file):
        if len(done) == 3:
            raise stop
        done.append(file)
        return read(file)

    with monkeypatch.context() as patched:
        patched.setattr(image_cache, "read_image", interrupted)
        with pytest.raises(stop):
            load(isic, cache)
    assert len(done) == 3
    assert list(cache.iterdir()) == []
    assert len(load(isic, cache)) == 5
    assert sorted(file.suffix for file in cache.iterdir()) == [".npy", ".sha256"]


def test_a_truncated_image_is_named_and_leaves_no_cache(isic, tmp_path):
    file = isic / "fed_isic2019" / IMAGES / "ISIC_4_downsampled.jpg"
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(ValueError, match=r"ISIC_4_downsampled.jpg can't be read"):
        load(isic, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_incomplete_fed_isic_says_what_is_missing(isic, tmp_path):
    folder = isic / "fed_isic2019"
    with pytest.raises(ValueError, match=r"hold \(2, 0, 1, 0, 0, 0\) training and .* not \(9930, 3163"):
        fed_isic2019(isic, cache_dir=tmp_path / "cache")
    (folder / IMAGES / "ISIC_2.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 5 images aren't in .*, the first: ISIC_2.jpg"):
        load(isic, tmp_path)
    for rows, drop, message in [
        (ROWS, ("center",), "train_test_split has no column center"),
        ([*ROWS, ("ISIC_9", 8, 0, "train")], (), "line 7: image 'ISIC_9', target '8'"),
        ([*ROWS, ("ISIC_9", 0, 6, "train")], (), "line 7: .* center '6'"),
        ([*ROWS, ("ISIC_9", 0, 5, "val")], (), "line 7: .* fold 'val'"),
        ([], (), "names no images"),
    ]:
        write_split(folder, rows, drop)
        with pytest.raises(ValueError, match=message):
            load(isic, tmp_path)
    (folder / "train_test_split").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no file train_test_split\. It's in FLamby's repository"):
        load(isic, tmp_path)


def test_images_are_scaled_to_cover_the_size_and_cut_at_the_centre():
    stripes = np.zeros((10, 30, 3), np.uint8)
    stripes[:, 10:20] = (10, 20, 30)  # a square in the middle of a wide image
    same = image_cache.covering(stripes, (3, 10, 10))
    assert same[:, 5, 5].tolist() == [10, 20, 30]
    assert same.reshape(3, -1).T.tolist() == [[10, 20, 30]] * 100
    assert image_cache.covering(stripes, (3, 20, 20))[:, 10, 10].tolist() == [10, 20, 30]
    assert image_cache.covering(stripes[..., 0], (1, 7, 9)).shape == (1, 7, 9)
    assert image_cache.covering(stripes[..., 0], (3, 7, 9)).shape == (3, 7, 9)


@pytest.fixture
def own(tmp_path):
    """Two clients; Lyon has no dogs."""
    root = tmp_path / "pets"
    for number, file in enumerate(["Nice/cat/1.png", "Nice/cat/2.png", "Nice/dog/1.png", "Lyon/cat/1.jpg"]):
        save(root / file, colour=(50 * number, 0, 0))
    (root / "Nice" / ".hidden").touch()
    return root


def test_folders_of_clients_hold_folders_of_classes(own, tmp_path):
    source = image_folders(own, cache_dir=tmp_path / "cache")
    assert source.name == "pets"
    assert source.x.shape == (4, 3, 6, 8)
    assert source.classes == ("cat", "dog")
    assert source.client_names == ("Lyon", "Nice")
    assert source.client.tolist() == [0, 1, 1, 1]
    assert source.y.tolist() == [0, 0, 0, 1]
    assert source.x[1:, 0, 0, 0].tolist() == [0, 50, 100]  # .png keeps colours exactly
    assert len(natural(source, test=0.0)) == 2


def test_grey_images_stay_grey(tmp_path):
    for kind in ("a", "b"):
        save(tmp_path / "data" / "one" / kind / "x.png", colour=7, mode="L")
    assert image_folders(tmp_path / "data", cache_dir=tmp_path / "cache").x.shape == (2, 1, 6, 8)


def test_sizes_that_differ_need_a_size(own, tmp_path):
    save(own / "Lyon" / "dog" / "1.png", width=20, height=30)
    with pytest.raises(ValueError, match=r"different sizes, as 6×8 and 30×20 .*Give size"):
        image_folders(own, cache_dir=tmp_path / "cache")
    assert image_folders(own, size=5, cache_dir=tmp_path / "cache").x.shape == (5, 3, 5, 5)
    assert image_folders(own, size=(5, 7), cache_dir=tmp_path / "cache").x.shape == (5, 3, 5, 7)
    with pytest.raises(ValueError, match="size is 0"):
        image_folders(own, size=0, cache_dir=tmp_path / "cache")


def test_folders_that_do_not_fit_are_refused(own, tmp_path):
    (own / "Nice" / "dog" / "notes.txt").write_text("bought in 2019")
    with pytest.raises(ValueError, match=r"notes.txt can't be read: it isn't an image"):
        image_folders(own, cache_dir=tmp_path)
    (own / "Nice" / "dog" / "notes.txt").unlink()
    (own / "Paris").mkdir()
    with pytest.raises(ValueError, match="Paris holds no images in folders of classes"):
        image_folders(own, cache_dir=tmp_path)
    save(tmp_path / "one" / "Nice" / "cat" / "1.png")
    with pytest.raises(ValueError, match="one class only, 'cat'"):
        image_folders(tmp_path / "one", cache_dir=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty holds no folders"):
        image_folders(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        image_folders(tmp_path / "nowhere")


def test_classes_of_two_unicode_forms_are_refused(own, tmp_path):
    save(own / "Nice" / "cha\u0302t" / "1.png")
    save(own / "Lyon" / "ch\u00e2t" / "1.png")
    with pytest.raises(ValueError, match="differ by blanks or by the Unicode form"):
        image_folders(own, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(("suffix", "damage"), [(".npy", "cut"), (".npy", "lost"), (".sha256", "lost")])
def test_a_damaged_cache_is_made_anew(own, tmp_path, suffix, damage):
    first = image_folders(own, cache_dir=tmp_path / "cache")
    images = first.x.clone()  # of the file that gets damaged
    (file,) = (tmp_path / "cache").glob(f"*{suffix}")
    file.unlink() if damage == "lost" else file.write_bytes(file.read_bytes()[:100])
    again = image_folders(own, cache_dir=tmp_path / "cache")
    assert again.checksum == first.checksum
    assert torch.equal(again.x, images)
