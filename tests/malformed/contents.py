"""Files laid out by hand: records under hashes, safetensors, NumPy files, TensorProtos and archives."""

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any

import numpy as np


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def chained(bodies: Iterable[bytes]) -> bytes:
    """A ledger of these records whose every hash is right: what somebody writes who knows the format."""
    head, lines = "0" * 64, []
    for body in bodies:
        head = sha256(head.encode() + body)
        lines.append(b'{"body":' + body + b',"hash":"' + head.encode() + b'"}\n')
    return b"".join(lines)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def some(count: int, below: int, seed: int) -> list[int]:
    """Distinct whole numbers, in order."""
    return sorted(int(n) for n in np.random.default_rng(seed).choice(below, count, replace=False))


def tensors_file(header: bytes | Mapping[str, Any], data: bytes, length: int | None = None) -> bytes:
    """A safetensors file: the length of its header, the header, the data."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def tensors(**arrays: np.ndarray) -> bytes:
    """A safetensors file of arrays, laid out by hand."""
    names = {"f": "F", "i": "I", "u": "U"}
    header, data = {}, b""
    for name, array in arrays.items():
        offsets, kind = [len(data), len(data) + array.nbytes], array.dtype.kind
        dtype = "BOOL" if kind == "b" else f"{names[kind]}{8 * array.itemsize}"
        header[name.replace("__", ".")] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return tensors_file(header, data)


# A strategy of six rounds.
C = np.linalg.cholesky(np.full((6, 6), 0.3) + np.eye(6))


def npy(array: np.ndarray) -> bytes:
    out = BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_of(header: str | bytes, data: bytes, magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    text = header if isinstance(header, bytes) else header.encode("latin1")
    text += b" " * (-(len(text) + len(magic) + 3) % 64) + b"\n"
    return magic + struct.pack("<H" if magic[6] == 1 else "<I", len(text)) + text + data


def header_of(descr: str, shape: str, order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def proto(dtype: int, shape: Iterable[int], data: bytes) -> bytes:
    sizes = b"".join(field(2, field(1, size)) for size in shape)
    return field(1, dtype) + field(2, sizes) + field(4, data)


class Payload:
    """Leaves a trace when somebody unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, ("unpickled",)


def archive(**members: bytes) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return out.getvalue()
