"""Data files that are not MNIST."""

import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np

from malformed.base import Case, Run, Word
from malformed.contents import some
from malformed.damages import KINDS, Damage, becoming, holding, together, without
from malformed.matrices import Payload, header_of, npy, npy_of

PUBLISHED = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "x_train.npy") -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(name, content)
    return out.getvalue()


ODD_IMAGES = """
(60000,28) (60000,784) (1,28,28) (59999,28,28) (60001,28,28) (28,28,60000) () (0,) (10**6,28,28) (1000000000000,)
(-60000,28,28) (60000.0,28,28) (60000L,28L,28L) (60000
""".split()
METHODS = {"deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA, "stored": zipfile.ZIP_STORED}


def mnist(run: Run) -> Iterator[Case]:
    command = ("plan", "plan.toml", "--measure", "--set", "data.name=mnist", "--set", "data.path=mnist.npz")

    def case(what: str, content: bytes) -> Case:
        return Case(what, (command,), ("mnist.npz",), holding("mnist.npz", content))

    right = "(60000, 28, 28)"
    for shape in (*ODD_IMAGES, "(" * 5000):
        yield case(f"shape {shape[:30]}", zipped(npy_of(header_of("'|u1'", shape), bytes(100))))
    for descr in ("'|i1'", "'<f8'", "'|b1'", "'|O'", "'|S1'", "'|V1'", "'>u2'", "'x'", "None", "[('a', '|u1')]"):
        yield case(f"type {descr}", zipped(npy_of(header_of(descr, right), bytes(100))))
    yield case("Fortran order", zipped(npy_of(header_of("'|u1'", right, "True"), bytes(100))))
    yield case("short", zipped(npy_of(header_of("'|u1'", right), bytes(1000))))
    yield case("long", zipped(npy_of(header_of("'|u1'", right), bytes(60000 * 784 + 1))))
    yield case("bomb", zipped(npy_of(header_of("'|u1'", right), bytes(3 * 60000 * 784))))
    yield case("pickled objects", zipped(npy_of(header_of("'|O'", right), pickle.dumps(Payload()))))
    for header in (b"", b"{}", b"{" * 3000, b"{'descr':", b"\0" * 100, b"'", b"-" * 9000):
        yield case(f"header {header[:20]!r}", zipped(npy_of(header, bytes(100))))
    for version in (b"\x02\x00", b"\x03\x00", b"\x00\x00", b"\xff\xff"):
        yield case(f"version {version!r}", zipped(b"\x93NUMPY" + version + bytes(200)))
    for name in ("x_train", "x_train.NPY", "../x_train.npy", "/x_train.npy", "y_train.npy", "\x1b[31m"):
        yield case(f"a member named {name!r}", zipped(b"hello", name=name))
    yield from _archives(case, npy_of(header_of("'|u1'", right), np.random.default_rng(16).bytes(4000)))
    yield from _mnist_parts(case)
    yield from _mnist_folders()


def _archives(case: Callable[..., Case], member: bytes) -> Iterator[Case]:
    yield case("no NumPy", zipped(b"hello"))
    yield case("an empty member", zipped(b""))
    for kind, method in METHODS.items():
        content = zipped(member, method)
        for place in (45, 60, 200, 1000):
            yield case(f"{kind}, overwritten at {place}", content[:place] + b"\xa5" * 40 + content[place + 40 :])
    small = zipped(member)
    for what, at, value in (("encrypted", 6, 1), ("method 99", 8, 99), ("method 97", 8, 97), ("patched data", 6, 32)):
        central = small.index(b"PK\x01\x02") + at + 2
        broken = bytearray(small)
        broken[at], broken[central] = value, value
        yield case(what, bytes(broken))
    for cut in some(15, len(small), seed=161):
        yield case(f"cut at {cut}", small[:cut])
    for what, content in {
        "text": b"MNIST",
        "zeros": bytes(5000),
        "tar": b"x".ljust(257) + b"ustar" + bytes(300),
        "pickle": pickle.dumps(Payload()),
    }.items():
        yield case(what, content)


def _mnist_parts(case: Callable[..., Case]) -> Iterator[Case]:
    """A right first array, and something wrong with a later one."""
    first = npy(np.zeros((60000, 28, 28), np.uint8))
    for what, member in {
        "no y_train": None,
        "y_train of floats": npy(np.zeros(60000)),
        "y_train of images": npy(np.zeros((60000, 2), np.uint8)),
    }.items():
        out = BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("x_train.npy", first)
            if member is not None:
                archive.writestr("y_train.npy", member)
        yield case(what, out.getvalue())


def _mnist_folders() -> Iterator[Case]:
    command = ("plan", "plan.toml", "--measure", "--set", "data.name=mnist", "--set", "data.path=data")
    file = f"{PUBLISHED[0]}.gz"

    def made(content: bytes) -> Damage:
        return together(lambda: Path("data").mkdir(exist_ok=True), *(holding(f"data/{name}.gz", content) for name in PUBLISHED))

    for what, content in {"empty": b"", "text": b"MNIST", "gzip": zlib.compress(b"x", wbits=31), "zeros": bytes(10**5)}.items():
        yield Case(f"folder: {what}", (command,), (file,), made(content))
    for kind in KINDS:
        for name in (file, "mnist.npz"):
            damage = together(made(b""), holding("data/mnist.npz", b""), becoming(f"data/{name}", kind))
            rest = (without("data/mnist.npz"),) if name == file else ()
            word: Word = ("data", "mnist.npz") if name == "mnist.npz" and kind in ("folder", "dangling", "loop") else name
            yield Case(f"folder: {name}: {kind}", (command,), (word,), together(damage, *rest))
