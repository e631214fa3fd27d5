"""CIFAR-10: 50,000 training and 10,000 test images in color, 32 × 32, of ten classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import hashlib
import tarfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np

from hubbub._util.files import cache_folder, refusing
from hubbub.datasets.dataset import Dataset
from hubbub.datasets.published import Expected, Numbers, PublishedFile, image_dataset, named, read, read_arrays, replacing, what
from hubbub.errors import DataError

_PUBLISHED = PublishedFile("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
_FOLDER = "cifar-10-batches-bin"
# Images in each published file: five files for training, one for test.
_BATCH, _TRAIN = 10_000, 5
# The files in the archive and their MD5.
_BATCHES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
# Of the channels of the training images, as commonly used.
_MEANS, _DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_INSTEAD = f"give data.path or set HUBBUB_DATA to a folder with cifar-10-binary.tar.gz, {_FOLDER} or cifar10.npz"


def load(path: str | None = None) -> Dataset:
    """CIFAR-10, inputs ``(3, 32, 32)`` standardized by the mean and deviation of each channel.

    Decoded images are cached in ``~/.cache/hubbub/cifar10``; a damaged cache is rebuilt.

    Args:
        path: The published ``cifar-10-binary.tar.gz``; or the folder ``cifar-10-batches-bin`` that it unpacks to; or
            ``cifar10.npz``, whose images are JPEG files (arrays ``blob``, ``offsets``, ``labels``, ``split``). JPEG loses
            detail: accuracies with it are not those of the published images. Or a folder with one of the three. Without a
            path: the folder in the environment variable ``HUBBUB_DATA``, then the cache, then a download of the published file.

    Raises:
        DataError: The file is missing or damaged, or the download fails.
    """
    return image_dataset(_arrays(path), _MEANS, _DEVIATIONS)


def _arrays(path: str | None) -> dict[str, Numbers]:
    place = named(path)
    if place is None:
        return _cached("published", lambda: _from_binary(_PUBLISHED.downloaded(_INSTEAD)))
    files = [place / "cifar10.npz", place / _PUBLISHED.name] if place.is_dir() else [place]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        for folder in (place, place / _FOLDER):
            if any((folder / name).is_file() for name in _BATCHES):
                batches = [PublishedFile(name, digest) for name, digest in _BATCHES.items()]
                return _from_batches([batch.read(folder / batch.name, "unpack the archive again") for batch in batches])
        raise DataError(f"{files[0]}: {what(files[0])}; {_INSTEAD}, or leave both out to download CIFAR-10")
    with refusing(file, "cannot be read", _INSTEAD, DataError):
        content = read(file)
    if content[:2] == b"PK":
        return _cached(f"jpeg-{hashlib.sha256(content).hexdigest()[:32]}", lambda: _from_jpeg(content, file))
    if _PUBLISHED.holds(content):
        return _cached("published", lambda: _from_binary(content))
    raise DataError(f"{file}: is neither cifar10.npz nor the published {_PUBLISHED.name} (its digest differs)")


def _cached(name: str, make: Callable[[], dict[str, Numbers]]) -> dict[str, Numbers]:
    """The decoded arrays from the cache; made, and cached if possible, if they are missing or damaged."""
    file = cache_folder() / "cifar10" / f"{name}.npz"
    if file.is_file():
        images = {"train": _TRAIN * _BATCH, "test": _BATCH}
        pixels = {f"x_{part}": Expected((count, 3, 32, 32)) for part, count in images.items()}
        labels = {f"y_{part}": Expected((count,)) for part, count in images.items()}
        with suppress(DataError):
            return read_arrays(file, {**pixels, **labels}, "CIFAR-10")
    arrays = make()
    with suppress(OSError), replacing(file) as place:
        np.savez(place, **arrays)  # type: ignore[arg-type] # no array has the name of an option
    return arrays


def _from_binary(content: bytes) -> dict[str, Numbers]:
    """The arrays of the published archive."""
    with tarfile.open(fileobj=BytesIO(content), mode="r:gz") as archive:
        members = [archive.extractfile(f"{_FOLDER}/{name}") for name in _BATCHES]
        return _from_batches([b"" if member is None else member.read() for member in members])


def _from_batches(batches: list[bytes]) -> dict[str, Numbers]:
    """The arrays of the published files: for each image one byte for its label, then red, green and blue by rows."""
    rows = np.concatenate([np.frombuffer(batch, np.uint8).reshape(_BATCH, 1 + 3 * 32 * 32) for batch in batches])
    return _arrays_of(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0], np.arange(len(rows)) >= _TRAIN * _BATCH)


def _from_jpeg(content: bytes, file: Path) -> dict[str, Numbers]:
    images = (_TRAIN + 1) * _BATCH
    expected = {
        "blob": Expected((None,)),
        "offsets": Expected((images + 1,), "int64"),
        "labels": Expected((images,)),
        "split": Expected((images,)),
    }
    arrays = read_arrays(BytesIO(content), expected, "CIFAR-10", label=file)
    labels, split = arrays["labels"], arrays["split"]
    if labels.max() > 9 or split.max() > 1 or split.sum() != _BATCH:
        raise DataError(f"{file}: labels must be from 0 to 9, and split 1 of {_BATCH:,} images and 0 of the others")
    from PIL import Image

    blob, offsets = arrays["blob"], arrays["offsets"]
    if offsets[0] < 0 or offsets[-1] > len(blob) or (np.diff(offsets) < 0).any():
        raise DataError(f"{file}: offsets must rise from 0 to at most {len(blob)}")
    pixels = np.empty((images, 3, 32, 32), dtype=np.uint8)
    for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        try:
            # JPEG only, and the size is checked before decoding.
            with Image.open(BytesIO(blob[start:end].tobytes()), formats=["JPEG"]) as image:
                if image.size != (32, 32) or image.mode != "RGB":
                    raise ValueError(f"it is {image.mode} of {image.size}, not RGB of {(32, 32)}")
                pixels[index] = np.asarray(image).transpose(2, 0, 1)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"{file}: image {index}: {error}") from error
    return _arrays_of(pixels, labels, split == 1)


def _arrays_of(pixels: Numbers, labels: Numbers, test: Numbers) -> dict[str, Numbers]:
    return {"x_train": pixels[~test], "y_train": labels[~test], "x_test": pixels[test], "y_test": labels[test]}
