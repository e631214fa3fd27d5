"""Matrix files that hold no strategy, or would run code or fill the memory."""

import itertools
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO

import numpy as np
import torch

from malformed.base import CALIBRATE, NOISY, Case, Run, Word
from malformed.contents import some, tensors
from malformed.damages import holding

C = np.linalg.cholesky(np.full((6, 6), 0.3) + np.eye(6))


def npy(array: np.ndarray) -> bytes:
    out = BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_of(header: str | bytes, data: bytes, magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    """A NumPy file with this header."""
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
    """One field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def proto(dtype: int, shape: Iterable[int], data: bytes) -> bytes:
    """A TensorProto."""
    sizes = b"".join(field(2, field(1, size)) for size in shape)
    return field(1, dtype) + field(2, sizes) + field(4, data)


class Payload:
    """Leaves a trace when somebody unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, ("unpickled",)


def _no_strategies() -> Iterator[tuple[str, np.ndarray, str]]:
    """Square or not, matrices that no noise can be made with, and what the message names of them."""
    for i, j in ((0, 0), (3, 1), (5, 5)):
        for odd in (np.nan, np.inf, -np.inf, 1e300):
            A = C.copy()
            A[i, j] = odd
            yield f"{odd} in {i}, {j}", A, f"[{i}, {j}]"
    for i in (0, 2, 5):
        for zero in (0.0, -0.0, 1e-320):
            A = C.copy()
            A[i, i] = zero
            yield f"diagonal {zero} in {i}", A, f"[{i}, {i}]"
    for i, j in ((0, 1), (0, 5), (4, 5)):
        A = C.copy()
        A[i, j] = 1e-9
        yield f"above the diagonal in {i}, {j}", A, f"[{i}, {j}]"
    yield "transposed", C.T.copy(), "[0, 1]"
    yield "not square", C[:, :5], "(6, 5)"
    yield "wide", C[:5], "(5, 6)"
    yield "one axis", C[:, 0], "(6,)"
    yield "three axes", C[None], "(1, 6, 6)"
    yield "no axis", np.array(1.0), "()"
    yield "empty", C[:0, :0], "(0, 0)"
    yield "fewer rounds", C[:5, :5], "5 rounds"
    yield "one round", C[:1, :1], "1 rounds"


def matrices(run: Run) -> Iterator[Case]:
    bases = itertools.cycle([NOISY, CALIBRATE])

    def case(what: str, content: bytes, file: str, *words: Word) -> Case:
        command = (*next(bases), "--mechanism", file)
        return Case(f"{file}: {what}", (command,), (file, *words), holding(file, content))

    for what, matrix, word in _no_strategies():
        yield case(what, npy(matrix), "C.npy", word)
        yield case(what, proto(2, matrix.shape, matrix.tobytes()), "C.pb", word)
    yield case("Fortran order of the transpose", npy(np.asfortranarray(C.T)), "C.npy", "[0, 1]")
    for dtype in ("float16", "int64", "uint8", "bool", "complex128", "S8", "U8", "V8", "M8[s]", "m8[s]", "object"):
        array = np.zeros((6, 6), dtype="V8") if dtype == "V8" else np.eye(6).astype(dtype if dtype[0] not in "Mm" else "i8")
        array = array.view(dtype) if dtype[0] in "Mm" else array
        yield case(dtype, npy(array), "C.npy")
    yield case("records", npy(np.zeros((6, 6), dtype=[("a", "<f8")])), "C.npy")
    whole, message = npy(C), proto(2, C.shape, C.tobytes())
    for cut in sorted({*some(25, len(whole), seed=14), 5, 6, 7, 8, 9, 10, 127, 128, 129}):
        yield case(f"cut at {cut}", whole[:cut], "C.npy")
    for cut in sorted({*some(25, len(message), seed=15), 1, 2, 3, 4}):
        yield case(f"cut at {cut}", message[:cut], "C.pb")
    for more in (b"\0", bytes(8), bytes(1000)):
        yield case(f"{len(more)} bytes more", whole + more, "C.npy")
    yield from _headers(case)
    yield from _protos(case)
    yield from _code(case)


ODD_SHAPES = """
(1000000,1000000) (10**12,) (1000000000000,) (-6,-6) (-1,6) (6.0,6.0) (6,6,0) 6 [6,6] ('6','6') None (6,6 (6,6)) (6L,6L,2L)
__import__('os').mkdir('ran')
""".split()
ODD_TYPES = "'<f9' '<f0' 'O' '|O' 'x' '' None 8 ['<f8'] '<f8,<f8' ('<f8',(2,)) '\x1b[31m'".split()
ODD_HEADERS = (b"", b"{}", b"[]", b"{" * 3000, b"'", b"{'descr':", b"\xff\xfe", b"\0" * 100, b"{'descr': '<f8'}", b"-" * 9000)


def _headers(case: Callable[..., Case]) -> Iterator[Case]:
    data = C.tobytes()
    for shape in (*ODD_SHAPES, "(" * 5000, "(" + "9" * 5000 + ",)"):
        yield case(f"shape {shape[:30]}", npy_of(header_of("'<f8'", shape), data), "C.npy")
    for descr in ODD_TYPES:
        yield case(f"type {descr!r}", npy_of(header_of(descr, "(6, 6)"), data), "C.npy")
    for header in ODD_HEADERS:
        yield case(f"header {header[:20]!r}", npy_of(header, data), "C.npy")
    for order in ("None", "2", "'no'"):
        yield case(f"order {order}", npy_of(header_of("'<f8'", "(6, 6)", order), data), "C.npy")
    for version in (b"\x00\x00", b"\x00\x01", b"\x09\x00", b"\xff\xff"):
        magic = b"\x93NUMPY" + version
        yield case(f"version {version!r}", magic + npy(C)[8:], "C.npy")
    yield case("a header of 4 GiB", b"\x93NUMPY\x02\x00" + b"\xff" * 4 + bytes(100), "C.npy")


def _protos(case: Callable[..., Case]) -> Iterator[Case]:
    data = C.tobytes()
    for dtype in (0, 3, 9, 14, 19, 22, 101, 2**31, 2**63):
        yield case(f"type {dtype}", proto(dtype, C.shape, data), "C.pb")
    huge = ((10**6, 10**6), (2**32, 2**32), (2**63, 2**63), (2**64 - 1, 6))
    for shape in (*huge, (36, 0), (6, 7), (6,), (), (1,) * 100 + (36,), (6, 6, 2)):
        yield case(f"shape {str(shape)[:30]}", proto(2, shape, data), "C.pb")
    yield case("sixty thousand axes", proto(2, (2**62,) * 60_000, data), "C.pb")
    yield case("endless number", b"\x08" + b"\xff" * 20, "C.pb")
    yield case("no end of a number", b"\x08\xff", "C.pb")
    yield case("a length beyond the end", b"\x22" + varint(10**12) + data, "C.pb")
    yield case("a length of 2^63", b"\x22" + varint(2**63) + data, "C.pb")
    yield case("field 0", field(0, data), "C.pb")
    for wire in (1, 3, 4, 5, 6, 7):
        yield case(f"wire type {wire}", bytes([1 << 3 | wire]) + data, "C.pb")
    for what, content in {
        "text": b"C = eye(6)\n",
        "CSV": b"1,0\n0,1\n",
        "zeros": bytes(400),
        "ones": b"\xff" * 400,
        "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
        "MATLAB": b"MATLAB 5.0 MAT-file".ljust(128) + bytes(100),
        "compressed": zlib.compress(C.tobytes()),
        "safetensors": tensors(C=C),
    }.items():
        yield case(what, content, "C.pb")


def _archive(**members: bytes) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def _code(case: Callable[..., Case]) -> Iterator[Case]:
    """Files that would run code or fill the memory, were they read by whoever reads all."""
    for protocol in (0, 2, 4, 5):
        payload = pickle.dumps(Payload(), protocol)
        yield case(f"pickle of protocol {protocol}", payload, "C.npy")
        yield case(f"pickle of protocol {protocol}", payload, "C.pb")
    objects = np.empty((6, 6), dtype=object)
    objects[:] = Payload()
    yield case("pickled objects", npy(objects), "C.npy")
    yield case("pickle behind a header of floats", npy_of(header_of("'<f8'", "(6, 6)"), pickle.dumps(Payload())), "C.npy")
    out = BytesIO()
    torch.save({"C": torch.eye(6)}, out)
    yield case("torch", out.getvalue(), "C.pb")
    yield case("archive", _archive(C=npy(C)), "C.npy")
    yield case("bomb", _archive(C=npy_of(header_of("'<f8'", "(1000, 1000)"), bytes(8 * 10**6))), "C.npz")
