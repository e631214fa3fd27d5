"""Arrays from the files in which matrices were published: TensorFlow's ``TensorProto``, read without TensorFlow, and .npy.

A ``TensorProto`` is a protocol-buffer message of three fields that matter: 1, the element type (1 float, 2 double); 2, the
shape, a message that repeats field 2, one message a dimension, whose field 1 is the size; 4, the entries, row by row,
little-endian.
"""

import io
import math
from pathlib import Path

import numpy as np

from hubbub import files
from hubbub._checks import Array
from hubbub.errors import DataError

__all__ = ["read_tensor_proto"]

_DTYPES = {1: "<f4", 2: "<f8"}
_VARINT, _BYTES = 0, 2
_LARGEST = 2**36


def read_tensor_proto(path: str | Path) -> Array:
    """The array in a file, as float64.

    Args:
        path: A serialized ``TensorProto`` of floats or doubles, or a NumPy file, known by its first bytes. Sizes are checked
            before anything is allocated; pickled content is refused.

    Raises:
        DataError: The file is missing, torn, or of another kind.
    """
    file = Path(path)
    try:
        content = files.read(file.resolve(), at_most=_LARGEST)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    if content[:6] == b"\x93NUMPY":
        return _from_npy(file, content)
    try:
        return _parse(content)
    except (IndexError, ValueError) as error:
        raise DataError(f"{file}: is neither a NumPy file nor a TensorProto of floats or doubles ({error})") from error


def _from_npy(file: Path, content: bytes) -> Array:
    try:
        with io.BytesIO(content) as opened:
            version = np.lib.format.read_magic(opened)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"format version {version}")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran_order, dtype = read(opened)
            wanted = math.prod(shape) * dtype.itemsize
            entries = opened.read()
        if dtype.kind != "f" or len(entries) != wanted:
            raise ValueError(f"{dtype} {shape} needs {wanted} bytes of floats, the file holds {len(entries)}")
        array = np.frombuffer(entries, dtype).reshape(shape, order="F" if fortran_order else "C")
        return array.astype(np.float64)
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise DataError(f"{file}: is no NumPy array of floats ({error})") from error


def _parse(content: bytes) -> Array:
    dtype, shape, entries = 0, [], b""
    for field, value in _fields(content):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 2 and isinstance(value, bytes):
            shape = [size for _, part in _fields(value) if isinstance(part, bytes) for size in _sizes(part)]
        elif field == 4 and isinstance(value, bytes):
            entries = value
    if dtype not in _DTYPES:
        raise ValueError(f"element type {dtype} is neither float (1) nor double (2)")
    wanted = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    if len(entries) != wanted:
        raise ValueError(f"shape {tuple(shape)} needs {wanted} bytes, the file holds {len(entries)}")
    return np.frombuffer(entries, dtype=_DTYPES[dtype]).reshape(shape).astype(np.float64)


def _sizes(dimension: bytes) -> list[int]:
    return [value for field, value in _fields(dimension) if field == 1 and isinstance(value, int)]


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
