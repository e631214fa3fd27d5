"""CIFAR-10 from its published archive, and from JPEG files."""

import hashlib
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unplugged
from hubbub.datasets import cifar10, published
from hubbub.datasets.published import decoded
from hubbub.errors import DataError
from unplugged import serve

# Fixtures are found by their names here.
home = unplugged.home


def jpeg(pixels: np.ndarray, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}))
    return out.getvalue()


def joined(files: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *(len(file) for file in files)])


SMOOTH = np.stack(np.broadcast_arrays(*np.ogrid[0:128:4, 255:127:-4], 60), axis=-1).astype(np.uint8)


def test_jpeg_images_come_out_in_order_with_red_green_and_blue_as_channels() -> None:
    images = decoded(*joined([jpeg(SMOOTH), jpeg(SMOOTH[::-1])]), side=32)
    assert images.shape == (2, 3, 32, 32)
    for image, original in zip(images, (SMOOTH, SMOOTH[::-1]), strict=True):
        assert np.abs(image.transpose(1, 2, 0).astype(int) - original).max() < 8


@pytest.mark.parametrize(
    ("files", "offsets", "message"),
    [
        ([jpeg(SMOOTH), jpeg(SMOOTH)[:400]], None, "image 1: "),
        ([jpeg(SMOOTH), jpeg(SMOOTH, "PNG")], None, "image 1: cannot identify"),
        ([jpeg(SMOOTH[:16])], None, "image 0: it is RGB of (32, 16), not RGB of (32, 32)"),
        ([jpeg(SMOOTH)], [-5, 10], "offsets must rise from 0"),
        ([jpeg(SMOOTH)] * 2, [0, 800, 700], "offsets must rise from 0"),
    ],
    ids=range(5),
)
def test_damaged_jpeg_images_are_refused_by_their_number(files: list[bytes], offsets: list[int] | None, message: str) -> None:
    blob, right = joined(files)
    with pytest.raises(ValueError, match=re.escape(message)):
        decoded(blob, right if offsets is None else np.array(offsets), side=32)


def binary(rows: np.ndarray) -> bytes:
    """The published archive, by its description: six files of 10,000 rows, a label and then 3 × 1,024 pixels each."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for name, part in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], np.split(rows, 6), strict=True):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = part.nbytes
            archive.addfile(member, io.BytesIO(part.tobytes()))
    return out.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of a few images; gives how many there are in all."""
    monkeypatch.setattr(cifar10, "_BATCH", 20)
    return 120


def pixels_of(inputs: torch.Tensor) -> np.ndarray:
    """What was standardized, as it was before."""
    deviations, means = (np.reshape(part, (3, 1, 1)) for part in ([0.2470, 0.2435, 0.2616], [0.4914, 0.4822, 0.4465]))
    return (inputs.numpy() * deviations + means) * 255


def test_the_published_archive_is_decoded_once_and_a_damaged_cache_is_made_again(
    home: Path, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (small, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    content = binary(rows)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(cifar10, "_PUBLISHED", published.PublishedFile("https://x/cifar-10-binary.tar.gz", digest))
    asked = serve(monkeypatch, {"cifar-10-binary.tar.gz": content})

    def check(path: str | None) -> None:
        dataset = cifar10.load(path)
        assert (dataset.shape, dataset.classes) == ((3, 32, 32), 10)
        np.testing.assert_allclose(pixels_of(dataset.train_inputs), rows[:100, 1:].reshape(100, 3, 32, 32), atol=1e-3)
        np.testing.assert_allclose(pixels_of(dataset.test_inputs), rows[100:, 1:].reshape(20, 3, 32, 32), atol=1e-3)
        assert [*dataset.train_targets.tolist(), *dataset.test_targets.tolist()] == rows[:, 0].tolist()

    check(None)
    check(None)
    assert len(asked) == 1
    (kept,) = (home / ".cache" / "hubbub" / "cifar10").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-100], whole[:100_000] + b"\xa5" + whole[100_001:], b"", whole.replace(b"y_test", b"z_test")):
        kept.write_bytes(damaged)
        check(None)
    assert len(asked) == 5
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    check(str(tmp_path))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"neither cifar10\.npz nor the published"):
        cifar10.load(str(tmp_path))


def test_images_in_jpeg_files_are_decoded_once_and_dealt_by_their_split(home: Path, small: int, tmp_path: Path) -> None:
    files = [jpeg(np.full((32, 32, 3), (number, 255 - number, 60), np.uint8)) for number in range(small)]
    split = np.random.default_rng(0).permutation(np.arange(small) < 20)
    blob, offsets = joined(files)
    labels = np.arange(small, dtype=np.uint8) % 10
    arrays = {"blob": blob, "offsets": offsets, "labels": labels, "split": split.astype(np.uint8)}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    for _ in range(2):
        dataset = cifar10.load(str(tmp_path / "cifar10.npz"))
        for inputs, targets, mine in (
            (dataset.train_inputs, dataset.train_targets, ~split),
            (dataset.test_inputs, dataset.test_targets, split),
        ):
            np.testing.assert_allclose(pixels_of(inputs)[:, 0, 7, 7], np.flatnonzero(mine), atol=3)
            np.testing.assert_allclose(pixels_of(inputs)[:, 1, 7, 7], 255 - np.flatnonzero(mine), atol=3)
            assert targets.tolist() == (np.flatnonzero(mine) % 10).tolist()
    assert len(list((home / ".cache" / "hubbub" / "cifar10").iterdir())) == 1
    # Another file is not taken for this one.
    np.savez(tmp_path / "cifar10.npz", **{**arrays, "labels": labels[::-1].copy()})
    other = cifar10.load(str(tmp_path))
    assert other.train_targets.tolist() == labels[::-1][~split].tolist()


def test_an_archive_that_is_not_cifar10_is_refused_by_its_name(home: Path, small: int, tmp_path: Path) -> None:
    zeros, split = np.zeros(small, np.uint8), (np.arange(small) < 20).astype(np.uint8)
    right = {"blob": np.zeros(9, np.uint8), "offsets": np.zeros(small + 1, np.int64), "labels": zeros, "split": split}
    for message, changes in {
        "offsets is int64 (7,)": {"offsets": np.zeros(7, np.int64)},
        "labels must be from 0 to 9": {"labels": zeros + 10},
        "image 0: cannot identify": {},
    }.items():
        np.savez(tmp_path / "cifar10.npz", **{**right, **changes})
        with pytest.raises(DataError, match=rf"cifar10\.npz: .*{re.escape(message)}"):
            cifar10.load(str(tmp_path))
    with pytest.raises(DataError, match=r"nowhere: is missing; give data.path"):
        cifar10.load(str(tmp_path / "nowhere"))
    assert not list(home.rglob("*.npz"))
