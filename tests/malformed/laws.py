"""Generic damages: what no file of a format may be, made from one that is whole; each with a name."""

import json
import pickle
import struct
from collections.abc import Iterator, Set
from typing import Any

import numpy as np
from safetensors.numpy import load

from malformed.contents import Payload, flipped, header_of, npy_of, opened, some, tensors, tensors_file

DEEP = 100_000
Damaged = Iterator[tuple[str, bytes]]
# In the place of each value of a record: a value of every type, of no record of ours, and none.
WRONG: dict[str, Any] = {
    "nothing": ..., "null": None, "true": True, "-1": -1, "1.5": 1.5, "text": "\x1b[31m[/red]", "list": [1], "table": {"a": 1},
    "huge": 10**30,
}  # fmt: skip


def of_bytes(content: bytes, *, flips: int = 0, cuts: int = 12, seed: int = 0) -> Damaged:
    """Of any file: cut, empty, another kind of file; and bits flipped, where a digest or a check covers every bit."""
    for bit in some(flips, 8 * len(content), seed):
        yield f"bit {bit}", flipped(content, bit)
    for cut in some(min(cuts, len(content) - 1), len(content) - 1, seed + 1):
        yield f"cut at {cut}", content[:cut]
    for what, other in {
        "empty": b"", "blank": b" \n", "zeros": bytes(len(content)), "text": b"First Citizen:", "backwards": content[::-1],
        "pickle": pickle.dumps(Payload()), "zip": b"PK\x03\x04" + bytes(60),
    }.items():  # fmt: skip
        if other != content:
            yield what, other


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a record, and in the records in it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from leaves(inner, (*path, key))


def with_value(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a record with another value in a place, or without it."""
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def of_record(record: dict[str, Any], free: Set[str] = frozenset()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each value of a record wrong or missing; ``free`` names what may be so, ``path: kind`` or a path for all kinds."""
    for path in leaves(record):
        name = ".".join(path)
        for kind, odd in WRONG.items():
            if not {f"{name}: {kind}", name} & free:
                yield f"{name}: {kind}", with_value(record, path, odd)


def of_json(text: bytes) -> Damaged:
    """No strict JSON, or not one object: what has two readings, none, or takes all memory to read."""
    begin, inner = text[:1], text[1:]
    yield from {
        "NaN": begin + b'"a":NaN,' + inner,
        "Infinity": begin + b'"a":-Infinity,' + inner,
        "1e999": begin + b'"a":1e999,' + inner,
        "twice": begin + inner[:-1] + b"," + inner,
        "deep": begin + b'"a":' + b"[" * DEEP + b"]" * DEEP + b"," + inner,
        "long number": begin + b'"a":' + b"9" * DEEP + b"," + inner,
        "a name more": begin + b'"a":1,' + inner,
        "no UTF-8": begin + b'"a":"\xff",' + inner,
        "control character": begin + b'"a":"\x01",' + inner,
        "UTF-16": text.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + text,
        "null": b"null",
        "number": b"7",
        "list": b"[" + text + b"]",
        "text": b'"promise"',
        "empty object": b"{}",
        "comment": text + b"/* */",
        "single quotes": text.replace(b'"', b"'"),
        "two": text + text,
        "torn": text[: len(text) // 2],
    }.items()


def of_safetensors(content: bytes) -> Damaged:  # one part of the format after another
    """Lengths, headers, offsets, shapes and types that no safetensors file has."""
    header, data = opened(content)
    name, first = next((name, entry) for name, entry in header.items() if name != "__metadata__")
    text = content[8 : len(content) - len(data)]
    length = len(text)
    for cut in sorted({0, 1, 7, 8, 9, 8 + length // 2, 7 + length, 8 + length, len(content) - 8, len(content) - 1}):
        yield f"cut at {cut}", content[:cut]
    for stated in (0, 1, length - 1, length + 1, len(content), 10**8 + 1, 10**12, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"header of {stated} bytes", tensors_file(text, data, stated)
    for more in (1, 1000):
        yield f"{more} bytes behind the data", content + bytes(more)
    for what, odd in {
        **{
            f"header: {what}": odd for what, odd in of_json(text.rstrip()) if what not in ("a name more", "two", "empty object")
        },
        "header: zeros": bytes(length),
        "header: deep names": b'{"a":' * DEEP,
        "header: a name twice": text.replace(b"{", b'{"' + name.encode() + b'":' + json.dumps(first).encode() + b",", 1),
    }.items():
        yield what, tensors_file(odd, data)
    begin, end = first["data_offsets"]
    nan = float("nan")
    offsets = (
        [end, begin], [begin, end + 8], [begin, max(begin, end - 8)], [begin + 1, end + 1], [begin - 8, end], [begin], [],
        [begin, 2**63], [2**64, 2**64 + end], [begin, float(end)], [nan, end], [str(begin), str(end)], None, {},
    )  # fmt: skip
    shapes = ([*first["shape"], 2], [-1, *first["shape"]], [2**32, 2**32], [2**63], [1.0, *first["shape"]], ["8"], None, 8, {})
    dtypes = ("F65", "f64", "", None, 64, ["F64"], "object", "\x1b[31m")
    for key, odds in {"data_offsets": offsets, "shape": shapes, "dtype": dtypes}.items():
        for odd in odds:
            yield f"{key} {odd!r}", tensors_file({**header, name: {**first, key: odd}}, data)
        yield f"no {key}", tensors_file({**header, name: {k: v for k, v in first.items() if k != key}}, data)
    for entry in (None, [], 5, "x"):
        yield f"entry {entry}", tensors_file({**header, name: entry}, data)
    for meta in ([], 5, {"a": 1}, {"a": None}, "x"):
        yield f"metadata {meta}", tensors_file({**header, "__metadata__": meta}, data)
    yield "overlapping arrays", tensors_file({**header, "other": first}, data)
    yield "a hole", tensors_file(header, bytes(8) + data)


def of_arrays(content: bytes) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each array of a safetensors file of another type, shape, name or value, missing, or with one more beside it."""
    arrays = load(content)
    for name, array in arrays.items():
        flat, real = array.reshape(-1), array.dtype.kind == "f"
        odd: dict[str, np.ndarray] = {
            "of another type": array.astype(np.int64 if real else np.float64),
            "of bytes": array.astype(np.uint8),
            "of truths": array > 0,
            "folded": array.reshape(2, -1) if array.size % 2 == 0 else array.reshape(1, 1, -1),
            "short": flat[:-1],
            "long": np.append(flat, flat[:1]),
        }
        if array.ndim:
            odd |= {"one number": flat[0], "empty": flat[:0]}
        if real:
            odd |= {"NaN": array * np.nan, "infinite": np.where(flat == flat[-1], -np.inf, flat).reshape(array.shape)}
            odd |= {"half precision": array.astype(np.float16)}
        for what, other in odd.items():
            yield f"{name}: {what}", {**arrays, name: other}
        rest = {key: value for key, value in arrays.items() if key != name}
        yield f"{name}: missing", rest
        yield f"{name}: renamed", {**rest, "other": array}
    yield "one array more", {**arrays, "extra": np.ones(8)}


def of_safetensors_and_arrays(content: bytes) -> Damaged:
    """Both: what cannot be read, and what can be and is something else."""
    yield from of_safetensors(content)
    for what, arrays in of_arrays(content):
        yield what, tensors(**arrays)


SHAPES = """
(1000000,1000000) (10**12,) (1000000000000,) (-6,-6) (-1,6) (6.0,6.0) (6,6,0) 6 [6,6] ('6','6') None (6,6 (6,6)) (6L,6L,2L)
__import__('os').mkdir('ran')
""".split()
TYPES = "'<f9' '<f0' 'O' '|O' 'x' '' None 8 ['<f8'] '<f8,<f8' ('<f8',(2,)) '\x1b[31m'".split()
HEADERS = (b"", b"{}", b"[]", b"{" * 3000, b"'", b"{'descr':", b"\xff\xfe", b"\0" * 100, b"{'descr': '<f8'}", b"-" * 9000)


def of_npy(data: bytes, descr: str, shape: str) -> Damaged:
    """Headers of NumPy files that say what is not so, cannot be read, or would run code."""
    good = npy_of(header_of(descr, shape), data)
    for odd in (*SHAPES, "(" * 5000, "(" + "9" * 5000 + ",)"):
        yield f"shape {odd[:30]}", npy_of(header_of(descr, odd), data)
    for odd in TYPES:
        yield f"type {odd!r}", npy_of(header_of(odd, shape), data)
    for header in HEADERS:
        yield f"header {header[:20]!r}", npy_of(header, data)
    for order in ("None", "2", "'no'"):
        yield f"order {order}", npy_of(header_of(descr, shape, order), data)
    for version in (b"\x00\x00", b"\x00\x01", b"\x09\x00", b"\xff\xff"):
        yield f"version {version!r}", b"\x93NUMPY" + version + good[8:]
    yield "a header of 4 GiB", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(100)
    for cut in (0, 5, 8, 10, 127, 128, len(good) - 1):
        yield f"cut at {cut}", good[:cut]
    for more in (1, 1000):
        yield f"{more} bytes more", good + bytes(more)
    yield "pickled objects", npy_of(header_of("'|O'", shape), pickle.dumps(Payload()))
    yield "a pickle", npy_of(header_of(descr, shape), pickle.dumps(Payload()))
