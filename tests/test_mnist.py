"""The files of MNIST and Fashion-MNIST, and what all published files have in common."""

import gzip
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unplugged
from hubbub.datasets import Dataset, cifar10, mnist, shakespeare
from hubbub.datasets.published import Expected, read_arrays, standardized
from hubbub.errors import DataError
from unplugged import serve

# Fixtures are found by their names here.
home = unplugged.home


def idx(array: np.ndarray) -> bytes:
    """A published file as its format is defined: zeros, the type, the number of axes, the axes, the bytes."""
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes(), 1)


def clothes() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    made = {"x_train": (60_000, 28, 28), "y_train": (60_000,), "x_test": (10_000, 28, 28), "y_test": (10_000,)}
    arrays = {key: np.zeros(shape, np.uint8) for key, shape in made.items()}
    arrays["x_train"][:50] = generator.integers(0, 256, (50, 28, 28))
    arrays["y_train"][:] = generator.integers(0, 10, 60_000)
    arrays["x_test"][-1] = 7
    return arrays


def test_the_clothes_come_in_every_form_in_which_the_digits_come(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = clothes()
    files = dict(zip(mnist._NAMES, (idx(array) for array in arrays.values()), strict=True))
    digests = tuple(hashlib.md5(content, usedforsecurity=False).hexdigest() for content in files.values())
    monkeypatch.setattr(mnist, "_FASHION", mnist._Kind("Fashion-MNIST", "fashion-mnist", "https://x/", digests, 0.5, 0.25))
    expected = (arrays["x_train"][:50, np.newaxis] / 255 - 0.5) / 0.25
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    np.savez(tmp_path / "fashion-mnist.npz", **arrays)
    asked = serve(monkeypatch, files)
    for path in (folder, folder.parent, tmp_path / "fashion-mnist.npz", tmp_path, None):
        found = mnist._arrays(mnist._FASHION, None if path is None else str(path))
        assert all(np.array_equal(found[key], array) for key, array in arrays.items())
    dataset = mnist.load_fashion()
    np.testing.assert_allclose(dataset.train_inputs[:50].numpy(), expected, atol=1e-5)
    assert dataset.train_targets.tolist() == arrays["y_train"].tolist()
    assert (dataset.classes, dataset.shape, len(dataset.test_inputs)) == (10, (1, 28, 28), 10_000)
    assert asked == [f"https://x/{name}" for name in mnist._NAMES]
    # What was damaged in the cache is fetched again, alone.
    (home / ".cache" / "hubbub" / "fashion-mnist" / mnist._NAMES[2]).write_bytes(b"torn")
    mnist._arrays(mnist._FASHION, None)
    assert asked[4:] == [f"https://x/{mnist._NAMES[2]}"]


def test_the_digits_are_not_taken_for_the_clothes(tmp_path: Path) -> None:
    for name in mnist._NAMES:
        (tmp_path / name).write_bytes(idx(np.zeros((2, 28, 28), np.uint8)))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: is not the published train-images-idx3-ubyte\.gz"):
        mnist.load_fashion(str(tmp_path))
    with pytest.raises(DataError, match=re.escape("fashion-mnist.npz or the four published .gz files")):
        mnist.load_fashion(str(tmp_path / ".."))


@pytest.mark.parametrize("load", [mnist.load, mnist.load_fashion, cifar10.load, shakespeare.load])
def test_without_data_or_a_network_a_user_is_told_what_to_do(load: Callable[..., Dataset], home: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be downloaded \(.*no network here.*\); give data.path or set HUBBUB_DATA"):
        load()
    assert not list(home.rglob("*.npz"))


def test_what_comes_damaged_from_the_network_is_not_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, dict.fromkeys([*mnist._NAMES, "cifar-10-binary.tar.gz", "input.txt"], b"<html>"))
    for load in (mnist.load, cifar10.load, shakespeare.load):
        with pytest.raises(DataError, match="came damaged; try again"):
            load()
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_images_are_standardized_channel_by_channel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (250, 2, 3, 4), dtype=np.uint8)
    images = standardized(pixels, [0.25, 0.5], [0.5, 2.0]).numpy()
    for channel, (mean, deviation) in enumerate([(0.25, 0.5), (0.5, 2.0)]):
        np.testing.assert_allclose(images[:, channel], (pixels[:, channel] / 255 - mean) / deviation, atol=1e-6)


def test_an_array_may_have_another_length_only_where_that_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6, dtype=np.int64).reshape(3, 2))
    assert read_arrays(tmp_path / "a.npz", {"x": Expected((None, 2), "int64")}, "these")["x"].sum() == 15
    for refused in (Expected((9, 2), "int64"), Expected((None, 3), "int64"), Expected((3, 2), "int32")):
        with pytest.raises(DataError, match=r"a.npz: is not these as .npz with x \(x is int64 \(3, 2\), it must be"):
            read_arrays(tmp_path / "a.npz", {"x": refused}, "these")


@pytest.mark.parametrize(("place", "value", "message"), [(6, 1, "encrypted"), (8, 99, "compression method")])
def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path: Path, place: int, value: int, message: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    # A field of the member's own header, and the same field in the archive's list of members.
    content[place] = content[content.index(b"PK\x01\x02") + place + 2] = value
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.npz: is not these as \.npz with x \(.*{message}"):
        read_arrays(tmp_path / "a.npz", {"x": Expected((6,), "int64")}, "these")
