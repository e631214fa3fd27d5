"""Arrays from an .npz file, of the types and shapes that they must have: what a header says is checked before it is read."""

import lzma
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hubbub.errors import DataError
from hubbub.npy import read_header

__all__ = ["Expected", "Numbers", "read_arrays"]

# Of one of a few types, checked when they are read.
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Expected:
    """What an array must be.

    Args:
        shape: Its shape.
        dtype: The name of its type.
        or_shorter: Whether the first axis may be shorter.
    """

    shape: tuple[int, ...]
    dtype: str = "uint8"
    or_shorter: bool = False

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array may have this shape."""
        if shape == self.shape:
            return True
        return self.or_shorter and len(shape) == len(self.shape) and shape[1:] == self.shape[1:] and shape[0] < self.shape[0]


def read_arrays(file: Path | IO[bytes], arrays: Mapping[str, Expected], name: str, label: object = None) -> dict[str, Numbers]:
    """The arrays of an archive, read-only, each whole by the checksum that the archive has of it.

    Args:
        file: An .npz file, or its content.
        arrays: What it must hold; what else it holds is not read.
        name: Of the data set, for messages.
        label: What messages call the file; by default its path.

    Raises:
        DataError: It cannot be read, is damaged, or holds something else.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return {key: _member(archive, key, expected) for key, expected in arrays.items()}
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        # Of an encrypted member, and of a compression that is not known.
        RuntimeError,
    ) as error:
        raise DataError(f"{label or file}: is not {name} as .npz with {', '.join(arrays)} ({error})") from error


def _member(archive: zipfile.ZipFile, key: str, expected: Expected) -> Numbers:
    with archive.open(f"{key}.npy") as member:
        dtype, fortran_order, shape = read_header(member)  # type: ignore[arg-type] # it has the read that is needed
        if not expected.admits(shape) or dtype != np.dtype(expected.dtype) or fortran_order:
            raise ValueError(f"{key} is {dtype} {shape}, it must be {expected.dtype} {expected.shape}")
        size = math.prod(shape) * dtype.itemsize
        # One byte more than there should be: what is longer than its header says is noticed, and the checksum is compared.
        content = member.read(size + 1)
    if len(content) != size:
        raise ValueError(f"{key} holds {len(content)} bytes, not {size}")
    return np.frombuffer(content, dtype=dtype).reshape(shape)
