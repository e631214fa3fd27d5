"""Files of published data sets: where they come from, what they must hold, and their pixels as numbers for a model."""

import hashlib
import http.client
import lzma
import math
import os
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from hubbub._util.files import refusing
from hubbub._util.npy import read_header
from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError

# More than any of these files holds: a server that sends without end fills no memory.
_LARGEST = 400_000_000
# What a damaged archive of NumPy raises; a RuntimeError for an encrypted member, or an unknown compression.
DAMAGE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)


def named(path: str | None) -> Path | None:
    """The path given, else the folder in the environment variable ``HUBBUB_DATA``, else ``None``."""
    chosen = path or os.environ.get("HUBBUB_DATA")
    if not chosen:
        return None
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise DataError(f"{chosen}: is missing ({error})") from error


def what(path: Path) -> str:
    """The fault of a path that is not a regular file, in words."""
    return "is not a regular file" if path.exists() else "is missing"


def read(file: Path) -> bytes:
    """The content of a file; of one that is too large to be published its beginning, which has another digest."""
    with file.open("rb") as opened:
        # Memory for all that may be read is taken at once.
        return opened.read(min(_LARGEST, os.fstat(opened.fileno()).st_size))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that replaces ``path`` atomically; with several writers the last one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


@dataclass(frozen=True)
class PublishedFile:
    """A public file: its address and the digest of its content."""

    address: str
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.address.rpartition("/")[2]

    def holds(self, content: bytes) -> bool:
        """Whether the content has the digest."""
        kind = "md5" if len(self.digest) == 32 else "sha256"
        return hashlib.new(kind, content, usedforsecurity=False).hexdigest() == self.digest

    def read(self, file: Path, missing: str) -> bytes:
        """The content of a local copy."""
        if not file.is_file():
            raise DataError(f"{file}: {what(file)}; {missing}")
        with refusing(file, "cannot be read", missing, DataError):
            content = read(file)
        if not self.holds(content):
            raise DataError(f"{file}: is not the published {self.name} (its digest differs); {missing}")
        return content

    def fetched(self, folder: Path, instead: str) -> bytes:
        """The content from the cache folder, or else by download into it."""
        file = folder / self.name
        try:
            if file.is_file() and self.holds(content := read(file)):
                return content
            content = self.downloaded(instead)
            with replacing(file) as place:
                place.write(content)
        except OSError as error:
            raise DataError(f"{file}: cannot be read or written ({error}); {instead}") from error
        return content

    def downloaded(self, instead: str) -> bytes:
        """The content, downloaded."""
        try:
            with urllib.request.urlopen(self.address, timeout=30) as response:  # noqa: S310 # a fixed https address
                content: bytes = response.read(_LARGEST)
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"{self.address}: cannot be downloaded ({error}); {instead}") from error
        if not self.holds(content):
            raise DataError(f"{self.address}: came damaged; try again, or {instead}")
        return content


# Types are checked when arrays are read.
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Expected:
    """The expected shape and type of an array; an axis of length ``None`` may have any length."""

    shape: tuple[int | None, ...]
    dtype: str = "uint8"


def read_arrays(file: Path | IO[bytes], arrays: Mapping[str, Expected], name: str, label: object = None) -> dict[str, Numbers]:
    """The arrays of an archive, read-only, each checked by the archive's checksum."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {key: _member(archive, key, expected) for key, expected in arrays.items()}
    except DAMAGE as error:
        raise DataError(f"{label or file}: is not {name} as .npz with {', '.join(arrays)} ({error})") from error


def _member(archive: zipfile.ZipFile, key: str, expected: Expected) -> Numbers:
    with archive.open(f"{key}.npy") as member:
        dtype, fortran_order, shape = read_header(member)  # type: ignore[arg-type] # has read()
        pairs = zip(shape, expected.shape, strict=False)
        fits = len(shape) == len(expected.shape) and all(wanted in (size, None) for size, wanted in pairs)
        if not fits or dtype != np.dtype(expected.dtype) or fortran_order:
            raise ValueError(f"{key} is {dtype} {shape}, it must be {expected.dtype} {expected.shape}")
        size = math.prod(shape) * dtype.itemsize
        if size > _LARGEST:
            raise ValueError(f"{key} holds {size:,} bytes, at most {_LARGEST:,} are read")
        # One byte too many: reads to the end, so that the checksum is compared, and notices content beyond the header's size.
        content = member.read(size + 1)
    if len(content) != size:
        raise ValueError(f"{key} holds {len(content)} bytes, not {size}")
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def image_dataset(arrays: Mapping[str, Numbers], means: Sequence[float], deviations: Sequence[float]) -> Dataset:
    """Images of ten classes as a data set, standardized by mean and deviation of each channel, of pixels from 0 to 1.

    The arrays are ``x_train`` and ``x_test`` in uint8, ``(images, channels, height, width)``, or without channels if there is
    one, and ``y_train`` and ``y_test``, ``(images,)``.
    """
    mean, deviation = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (means, deviations))

    def tensors(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        pixels = torch.from_numpy(images.reshape(-1, len(means), *images.shape[-2:]).astype(np.float32))
        return pixels.div_(255).sub_(mean).div_(deviation), torch.from_numpy(labels.astype(np.int64))

    return Dataset(*tensors("train"), *tensors("test"), declared_classes=10)
