"""Arrays from the files in which matrices were published: TensorFlow's ``TensorProto``, read without TensorFlow, and .npy.

A ``TensorProto`` is a protocol-buffer message of three fields that matter: 1, the element type (1 float, 2 double); 2, the
shape, a message that repeats field 2, one message a dimension, whose field 1 is the size; 4, the entries, row by row,
little-endian.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hubbub._util import files
from hubbub._util.checks import Array
from hubbub._util.npy import MAGIC, read_header
from hubbub.errors import DataError

_DTYPES = {1: "<f4", 2: "<f8"}
_VARINT, _BYTES = 0, 2
_LARGEST = 2**36
_MOST_AXES = 2


def read_tensor_proto(path: str | Path) -> Array:
    """The array in a file, a serialized ``TensorProto`` of floats or doubles or a NumPy file, as float64.

    Sizes are checked before anything is allocated; pickled content is refused.
    """
    file = Path(path)
    try:
        content = files.read(file.resolve(), at_most=_LARGEST)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not content:
        raise DataError(f"{file}: is empty; it must be a NumPy file, or a TensorProto of floats or doubles")
    if content.startswith(b"PK"):
        raise DataError(
            f"{file}: is an archive (.npz), neither a NumPy file nor a TensorProto; save the one matrix by numpy.save, as .npy"
        )
    try:
        return _from_npy(content) if content.startswith(MAGIC) else _from_proto(content)
    except (IndexError, ValueError, TypeError) as error:
        raise DataError(
            f"{file}: is neither a NumPy file nor a TensorProto of floats or doubles ({error}); of a run name its folder"
        ) from error


def _from_npy(content: bytes) -> Array:
    stream = io.BytesIO(content)
    dtype, fortran_order, shape = read_header(stream)
    if dtype.kind != "f" or dtype.itemsize not in (4, 8):
        raise ValueError(f"its numbers are {dtype}: save them as float64")
    return _array(stream.read(), dtype, shape, "F" if fortran_order else "C")


def _array(entries: bytes, dtype: np.dtype[Any], shape: Sequence[int], order: Literal["C", "F"]) -> Array:
    """The array, once its sizes are checked."""
    if len(shape) > _MOST_AXES or any(size > _LARGEST for size in shape):
        shown = ", ".join(str(size) for size in shape[:4])
        raise ValueError(f"shape ({shown}{', …' if len(shape) > 4 else ''}): at most {_MOST_AXES} axes are read")
    wanted = math.prod(shape) * dtype.itemsize
    if len(entries) != wanted:
        raise ValueError(f"{dtype} {tuple(shape)} needs {wanted} bytes, the file holds {len(entries)}")
    return np.frombuffer(entries, dtype).reshape(shape, order=order).astype(np.float64)


def _from_proto(content: bytes) -> Array:
    dtype, shape, entries = 0, [], b""
    for field, value in _fields(content):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 2 and isinstance(value, bytes):
            parts = [part for _, part in _fields(value) if isinstance(part, bytes)]
            shape = [size for part in parts for name, size in _fields(part) if name == 1 and isinstance(size, int)]
        elif field == 4 and isinstance(value, bytes):
            entries = value
    if dtype not in _DTYPES:
        raise ValueError(f"element type {dtype} is neither float (1) nor double (2)")
    return _array(entries, np.dtype(_DTYPES[dtype]), shape, "C")


def _fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message, numbers and byte strings; other wire types are no part of a tensor."""
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == _VARINT:
            found.append((key >> 3, value))
        elif key & 7 == _BYTES:
            if at + value > len(message):
                raise ValueError("the file ends early")
            found.append((key >> 3, message[at : at + value]))
            at += value
        else:
            raise ValueError(f"wire type {key & 7} is no part of a TensorProto")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
