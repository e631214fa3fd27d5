"""MNIST and Fashion-MNIST: 60,000 training and 10,000 test images each, 28 × 28, of digits and of clothes, in the same format.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST Database of Handwritten Digits, 1998. Xiao, Rasul and Vollgraf,
Fashion-MNIST, 2017, https://arxiv.org/abs/1708.07747.
"""

import gzip
from dataclasses import dataclass

import numpy as np

from hubbub._util.files import cache_folder
from hubbub.datasets.dataset import Dataset
from hubbub.datasets.published import Expected, Numbers, PublishedFile, image_dataset, named, read_arrays, what
from hubbub.errors import DataError

_SHAPES = {"x_train": (60000, 28, 28), "y_train": (60000,), "x_test": (10000, 28, 28), "y_test": (10000,)}
_NAMES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


@dataclass(frozen=True)
class _Kind:
    """One of the two data sets: names, MD5 of the four published files, mean and deviation of the pixels."""

    title: str
    name: str
    folder: str
    digests: tuple[str, ...]
    mean: float
    deviation: float


_MNIST = _Kind(
    "MNIST",
    "mnist",
    # A mirror: the original site no longer serves them.
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    0.1307,
    0.3081,
)
_FASHION = _Kind(
    "Fashion-MNIST",
    "fashion-mnist",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    0.2860,
    0.3530,
)


def load(path: str | None = None) -> Dataset:
    """MNIST, inputs ``(1, 28, 28)`` standardized by the published mean and deviation of its pixels.

    Args:
        path: ``mnist.npz`` (arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``) or a folder with it or with the four
            published ``.gz`` files. Without one: the folder in the environment variable ``HUBBUB_DATA``, then the cache
            ``~/.cache/hubbub/mnist``, then a download into that cache.

    Raises:
        DataError: The file is missing or damaged, or the download fails.
    """
    return image_dataset(_arrays(_MNIST, path), [_MNIST.mean], [_MNIST.deviation])


def load_fashion(path: str | None = None) -> Dataset:
    """Fashion-MNIST, inputs ``(1, 28, 28)`` standardized by the published mean and deviation of its pixels.

    Args:
        path: As for :func:`load`, with ``fashion-mnist.npz``. The published files have the same names as MNIST's, so
            they may be in a subfolder ``fashion-mnist``.

    Raises:
        DataError: The file is missing or damaged, or the download fails.
    """
    return image_dataset(_arrays(_FASHION, path), [_FASHION.mean], [_FASHION.deviation])


def _arrays(kind: _Kind, path: str | None) -> dict[str, Numbers]:
    place, archive = named(path), f"{kind.name}.npz"
    addresses = [kind.folder + name for name in _NAMES]
    files = dict(zip(_SHAPES, map(PublishedFile, addresses, kind.digests), strict=True))
    if place is not None and place.is_dir() and (place / archive).exists():
        place = place / archive
    if place is not None and place.is_file():
        other = _FASHION if kind is _MNIST else _MNIST
        if place.name == f"{other.name}.npz":
            raise DataError(f"{place}: is {other.title}, by its name; name {archive}, or say data.name = {other.name!r}")
        return read_arrays(place, {key: Expected(shape) for key, shape in _SHAPES.items()}, kind.title)
    if place is None:
        instead = f"give data.path or set HUBBUB_DATA to a folder with {archive}"
        contents = {key: file.fetched(cache_folder() / kind.name, instead) for key, file in files.items()}
    elif place.is_dir():
        folder = place / kind.name if (place / kind.name).is_dir() else place
        missing = f"the folder must hold {archive} or the four published .gz files"
        contents = {key: file.read(folder / file.name, missing) for key, file in files.items()}
    else:
        instead = f"give data.path, set HUBBUB_DATA, or leave both out to download {kind.title}"
        raise DataError(f"{place}: {what(place)}; {instead}")
    # The digests cover the headers.
    bodies = {key: gzip.decompress(content)[4 + 4 * len(_SHAPES[key]) :] for key, content in contents.items()}
    return {key: np.frombuffer(body, dtype=np.uint8).reshape(_SHAPES[key]) for key, body in bodies.items()}
