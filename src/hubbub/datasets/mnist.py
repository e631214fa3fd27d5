"""MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 × 28.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST Database of Handwritten Digits, 1998.
"""

import gzip
import hashlib
import lzma
import math
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError
from hubbub.npy import read_header

__all__ = ["load"]

# The four files as published, by MD5; a mirror, since the first site no longer serves them.
_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = {
    "x_train": ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", (60000, 28, 28)),
    "y_train": ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", (60000,)),
    "x_test": ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", (10000, 28, 28)),
    "y_test": ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", (10000,)),
}
_MEAN, _DEVIATION = 0.1307, 0.3081


def load(path: str | None = None) -> Dataset:
    """MNIST, inputs ``(1, 28, 28)`` standardized by the published mean and deviation of its pixels.

    Args:
        path: ``mnist.npz`` (arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``) or a folder with it or with the four
            published ``.gz`` files. Without one: the folder in the environment variable ``HUBBUB_DATA``, then the cache
            ``~/.cache/hubbub/mnist``, then a download into that cache.

    Raises:
        DataError: The file is missing or damaged, or the download fails.
    """
    arrays = _arrays(path)

    def images(name: str) -> torch.Tensor:
        return (torch.from_numpy(arrays[name].astype(np.float32)).unsqueeze(1) / 255 - _MEAN) / _DEVIATION

    def labels(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name].astype(np.int64))

    return Dataset(images("x_train"), labels("y_train"), images("x_test"), labels("y_test"))


def _arrays(path: str | None) -> dict[str, np.ndarray]:
    named = path or os.environ.get("HUBBUB_DATA")
    if named:
        try:
            return _read(Path(named).expanduser())
        except RuntimeError as error:
            raise DataError(f"{named}: is missing ({error})") from error
    cache = Path.home() / ".cache" / "hubbub" / "mnist"
    if not all((cache / name).exists() for name, _, _ in _FILES.values()):
        _download(cache)
    return _read(cache)


def _read(place: Path) -> dict[str, np.ndarray]:
    if place.is_dir() and (place / "mnist.npz").exists():
        place = place / "mnist.npz"
    if place.is_dir():
        return {key: _idx(place / name, digest, shape) for key, (name, digest, shape) in _FILES.items()}
    if not place.is_file():
        raise DataError(f"{place}: {_what(place)}; give data.path, set HUBBUB_DATA, or leave both out to download MNIST")
    try:
        with zipfile.ZipFile(place) as archive:
            return {key: _member(archive, key, shape) for key, (_, _, shape) in _FILES.items()}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
    ) as error:
        raise DataError(f"{place}: is not MNIST as .npz with {', '.join(_FILES)} ({error})") from error


def _what(path: Path) -> str:
    return "is no regular file" if path.exists() else "is missing"


def _member(archive: zipfile.ZipFile, key: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array of the shape that it must have: what its header says is checked before it is read."""
    with archive.open(f"{key}.npy") as member:
        dtype, fortran_order, stated = read_header(member)  # type: ignore[arg-type] # it has the read that is needed
        if stated != shape or dtype != np.uint8 or fortran_order:
            raise ValueError(f"{key} is {dtype} {stated}, MNIST's is uint8 {shape}")
        content = member.read(math.prod(shape) + 1)
    if len(content) != math.prod(shape):
        raise ValueError(f"{key} holds {len(content)} bytes, not {math.prod(shape)}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _idx(file: Path, digest: str, shape: tuple[int, ...]) -> np.ndarray:
    if not file.is_file():
        raise DataError(f"{file}: {_what(file)}; the folder must hold mnist.npz or the four published .gz files")
    content = file.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
        raise DataError(f"{file}: is not the published file (its MD5 differs); remove it and try again")
    header = 4 + 4 * len(shape)
    return np.frombuffer(gzip.decompress(content)[header:], dtype=np.uint8).reshape(shape)


def _download(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for name, digest, _ in _FILES.values():
            with urllib.request.urlopen(_MIRROR + name, timeout=30) as response:  # noqa: S310 # a fixed https address
                content = response.read()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
                raise DataError(f"{_MIRROR}{name}: came damaged; try again, or give data.path")
            (cache / name).write_bytes(content)
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"MNIST cannot be downloaded ({error}); give data.path or set HUBBUB_DATA to a folder with mnist.npz"
        ) from error
