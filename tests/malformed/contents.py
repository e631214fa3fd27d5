"""What malformed files are made of: bytes, records under hashes, and safetensors files laid out by hand."""

import hashlib
import json
import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping
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
    names = {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "int64": "I64",
        "int32": "I32",
        "bool": "BOOL",
        "uint8": "U8",
    }
    header, data = {}, b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name.replace("__", ".")] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        data += array.tobytes()
    return tensors_file(header, data)


def leaves(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of a record, and of the records in it."""
    for key, inner in value.items():
        yield (*path, key)
        if isinstance(inner, Mapping) and key != "settings":
            yield from leaves(inner, (*path, key))


def changed(record: dict[str, Any], path: tuple[str, ...], *value: Any) -> bytes:
    """The record with another value there, or with none."""
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    if value:
        inner[path[-1]] = value[0]
    return canonical(record)


DEEP = 100_000


def attacks(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What no safetensors file may be, made from one that is whole: lengths, headers, offsets, shapes and types."""
    header, data = opened(content)
    name, first = next((name, entry) for name, entry in header.items() if name != "__metadata__")
    text = content[8 : len(content) - len(data)]
    (length,) = struct.unpack("<Q", content[:8])
    for cut in sorted({0, 1, 7, 8, 9, 8 + length // 2, 7 + length, 8 + length, len(content) - 8, len(content) - 1}):
        yield f"cut at {cut}", content[:cut]
    for stated in (0, 1, length - 1, length + 1, len(content), 10**8 + 1, 10**12, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"header of {stated} bytes", tensors_file(text, data, stated)
    yield "a byte behind the data", content + b"\0"
    yield "a thousand bytes behind the data", content + bytes(1000)
    for what, odd in {
        "empty": b"",
        "blank": b" " * len(text),
        "zeros": bytes(len(text)),
        "a list": b"[]",
        "null": b"null",
        "a string": b'"x"',
        "deep": b"[" * DEEP,
        "deep names": b'{"a":' * DEEP,
        "a long number": b"9" * DEEP,
        "no UTF-8": b"\xff" + text[1:],
        "half": text[: len(text) // 2],
        "twice": text.rstrip() + text,
        "no brace": text.replace(b"{", b"(", 1),
        "single quotes": text.replace(b'"', b"'"),
        "a name twice": text.replace(b"{", b'{"' + name.encode() + b'":' + json.dumps(first).encode() + b",", 1),
    }.items():
        yield f"header: {what}", tensors_file(odd, data)
    begin, end = first["data_offsets"]
    for offsets in (
        [end, begin],
        [begin, end + 8],
        [begin, max(begin, end - 8)],
        [begin + 1, end + 1],
        [begin - 8, end],
        [begin, 2**63],
        [2**64, 2**64 + end],
        [begin, float(end)],
        [float("nan"), end],
        [1e999, end],
        [str(begin), str(end)],
        [begin],
        [begin, end, end],
        [],
        None,
        {},
    ):
        yield f"offsets {offsets}", tensors_file({**header, name: {**first, "data_offsets": offsets}}, data)
    shape = first["shape"]
    for other in ([*shape, 2], [-1, *shape], [2**32, 2**32], [2**63], [float(n) for n in [*shape, 1]], ["8"], None, 8, {}):
        yield f"shape {other}", tensors_file({**header, name: {**first, "shape": other}}, data)
    for dtype in ("F65", "f64", "", None, 64, ["F64"], "object", "\x1b[31m"):
        yield f"dtype {dtype!r}", tensors_file({**header, name: {**first, "dtype": dtype}}, data)
    for key in ("dtype", "shape", "data_offsets"):
        yield f"no {key}", tensors_file({**header, name: {k: v for k, v in first.items() if k != key}}, data)
    for entry in (None, [], 5, "x"):
        yield f"entry {entry}", tensors_file({**header, name: entry}, data)
    for meta in ([], 5, {"a": 1}, {"a": None}, "x"):
        yield f"metadata {meta}", tensors_file({**header, "__metadata__": meta}, data)
    yield "overlapping arrays", tensors_file({**header, "other": first}, data)
    yield "a hole", tensors_file(header, bytes(8) + data)
    yield "pickle", pickle.dumps({"model": [1.0]})
    yield "a zip archive", b"PK\x03\x04" + bytes(60)
