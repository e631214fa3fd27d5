"""Data files that are not CIFAR-10, Shakespeare or Fashion-MNIST, and examples of other libraries that are none."""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hubbub.datasets.dataset import Dataset, from_examples
from hubbub.datasets.shakespeare import ALPHABET, examples
from malformed.base import PLAN, Call, Case, Run, Word
from malformed.contents import some
from malformed.damages import KINDS, becoming, holding, nothing, together
from malformed.matrices import Payload, header_of, npy, npy_of
from malformed.mnist import METHODS, zipped

IMAGES = 60_000


def archive(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return out.getvalue()


def tape(**members: bytes) -> bytes:
    """An archive as the published one is packed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def line(name: str, path: str) -> tuple[str, ...]:
    return (*PLAN, "--measure", "--set", f"data.name={name}", "--set", f"data.path={path}")


def cifar10(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    def case(what: str, content: bytes, *words: Word) -> Case:
        return Case(what, (line("cifar10", "cifar"),), ("cifar", *words), holding("cifar", content))

    offsets, labels = np.zeros(IMAGES + 1, np.int64), npy(np.zeros(IMAGES, np.uint8))
    split = np.zeros(IMAGES, np.uint8)
    split[-10_000:] = 1
    whole = {"blob": npy(np.zeros(1, np.uint8)), "offsets": npy(offsets), "labels": labels, "split": npy(split)}
    for name in whole:
        yield case(f"without {name}", archive(**{k: v for k, v in whole.items() if k != name}), name)
        for dtype in ("int8", "uint16", "float64", "bool", ">i8"):
            yield case(f"{name} of {dtype}", archive(**{**whole, name: npy(np.zeros(IMAGES, dtype))}), name)
        for shape in ("(59999,)", "(60002,)", "(60000, 1)", "()", "(1000000000000,)", "(-1,)", "(60000.0,)"):
            descr = "'<i8'" if name == "offsets" else "'|u1'"
            if (name, shape) != ("blob", "(59999,)"):
                yield case(
                    f"{name} of shape {shape}", archive(**{**whole, name: npy_of(header_of(descr, shape), bytes(99))}), name
                )
        yield case(f"{name} pickled", archive(**{**whole, name: pickle.dumps(Payload())}), name)
    for what, other in {
        "a label of 10": {"labels": npy(np.full(IMAGES, 10, np.uint8))},
        "no test": {"split": npy(np.zeros(IMAGES, np.uint8))},
        "all test": {"split": npy(np.ones(IMAGES, np.uint8))},
        "split of 2": {"split": npy(np.full(IMAGES, 2, np.uint8))},
    }.items():
        yield case(what, archive(**{**whole, **other}), "labels must be from 0 to 9")
    jpeg = io.BytesIO()
    from PIL import Image

    Image.new("RGB", (31, 32)).save(jpeg, "JPEG")
    png = io.BytesIO()
    Image.new("RGB", (32, 32)).save(png, "PNG")
    for what, blob in {
        "nothing": b"\0",
        "a PNG": png.getvalue(),
        "of another size": jpeg.getvalue(),
        "cut": jpeg.getvalue()[:99],
    }.items():
        rising = np.full(IMAGES + 1, len(blob), np.int64)
        rising[0] = 0
        made = archive(**{**whole, "blob": npy(np.frombuffer(blob, np.uint8)), "offsets": npy(rising)})
        yield case(f"an image: {what}", made, "image 0")
    for what, numbers in {"falling": [5, 1], "negative": [-1, 1], "beyond the end": [0, 10**12]}.items():
        odd = offsets.copy()
        odd[:1], odd[-1:] = numbers[0], numbers[1]
        yield case(f"offsets {what}", archive(**{**whole, "offsets": npy(odd)}), "offsets must rise")
    for kind, method in METHODS.items():
        yield case(f"one member by {kind}", zipped(labels, method, "labels.npy"), "blob")
    archived = archive(**whole)
    for cut in some(20, len(archived) - 1, seed=61):
        yield case(f"cut at {cut}", archived[:cut])
    rows = bytes(10_000 * 3073)
    for what, content in {
        "text": b"CIFAR-10",
        "empty": b"",
        "zeros": bytes(5000),
        "pickle": pickle.dumps({b"data": Payload()}),
        "a tape of one batch": tape(**{"cifar-10-batches-bin__data_batch_1.bin": rows[:3073]}),
        "a tape that leads out": tape(**{"..__..__x": b"x"}),
        "an empty tape": tape(),
        "gzip": b"\x1f\x8b\x08" + bytes(50),
    }.items():
        yield case(what, content)
    for kind in KINDS:
        if kind != "link":
            damage = together(holding("cifar", b"x"), becoming("cifar", kind))
            yield Case(f"kind {kind}", (line("cifar10", "cifar"),), ("cifar",), damage)


def shakespeare(run: Run) -> Iterator[Case]:
    """Any other text is another data set: not one letter is changed unseen."""

    def case(what: str, content: bytes) -> Case:
        words = ("play.txt", "is not the published input.txt")
        return Case(what, (line("shakespeare", "play.txt"),), words, holding("play.txt", content))

    text = b"First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n"
    for cut in some(20, len(text), seed=62):
        yield case(f"cut at {cut}", text[:cut])
    for place in some(20, len(text), seed=63):
        yield case(f"a letter at {place}", text[:place] + b"~" + text[place + 1 :])
    for what, content in {
        "empty": b"",
        "zeros": bytes(1000),
        "UTF-16": text.decode().encode("utf-16"),
        "control codes": b"\x1b[31mFirst:\nx",
        "nobody": b"\n\n\n",
        "no UTF-8": b"\xff\xfe" + text,
        "a play": text,
        "pickle": pickle.dumps(Payload()),
    }.items():
        yield case(what, content)
    for kind in KINDS:
        if kind != "link":
            damage = together(holding("play.txt", b"x"), becoming("play.txt", kind))
            yield Case(f"kind {kind}", (line("shakespeare", "play.txt"),), ("play.txt",), damage)
    for odd in ("", "a", "é", "ab\x1b", "tab\there", "1234", "a\0b", "\u202eba", "0" * 5000):
        call = Call("examples", lambda o=odd: examples(o, 5))
        yield Case(f"a text {odd[:9]!r}", (call,), ("a text of", "alphabet"), nothing)
    assert set("ab") <= set(ALPHABET)


class Stream:
    """Examples that nobody can count."""

    def __getitem__(self, index: int) -> Any:
        return [0.0], 0


def other_examples(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """Data sets of other libraries."""
    good = [([0.0, 1.0], 0), ([1.0, 0.0], 1)]

    def case(what: str, do: Callable[[], object], *words: Word) -> Case:
        return Case(what, (Call("from_examples", do),), words, nothing)

    odd_inputs: dict[str, Any] = {
        "text": "x", "nothing": None, "complex": [1j, 2j], "objects": [object()], "ragged": [[1.0], [1.0, 2.0]],
        "longer": [1.0] * 3, "shorter": [1.0], "empty": [], "a table": {"a": 1.0}, "control codes": "\x1b[31m",
        "one axis more": [[0.0, 1.0]], "bytes": b"x",
    }  # fmt: skip
    odd_targets: dict[str, Any] = {
        "text": "cat", "nothing": None, "half": 0.5, "NaN": float("nan"), "a list of halves": [0.5], "an object": object(),
        "a table": {}, "complex": 1j, "infinity": float("inf"), "bytes": b"x",
    }  # fmt: skip
    for where in ("train", "test"):
        for place in (0, 1):
            for what, odd in odd_inputs.items():
                items = [*good]
                items[place] = (odd, 0)
                both = {"train": good, "test": good} | {where: items}
                if not (place == 0 and what in ("longer", "shorter", "one axis more", "empty")):
                    yield case(f"{where}[{place}]: input {what}", lambda b=both: from_examples(**b), where)
            for what, odd in odd_targets.items():
                items = [*good]
                items[place] = ([0.0, 1.0], odd)
                both = {"train": good, "test": good} | {where: items}
                yield case(f"{where}[{place}]: target {what}", lambda b=both: from_examples(**b), where)
        for what, odd in {"a triple": (1, 2, 3), "a single": (1,), "a number": 7, "nothing": None, "text": "ab"}.items():
            both = {"train": good, "test": good} | {where: [odd, odd]}
            yield case(f"{where}: items of {what}", lambda b=both: from_examples(**b), where)
        for what, odd in {"a mapping": {"a": 1}, "a stream": Stream(), "a number": 7, "nothing": None, "empty": []}.items():
            both = {"train": good, "test": good} | {where: odd}
            yield case(f"{where}: {what}", lambda b=both: from_examples(**b), where)
    for users in ([1], [1, 2, 3], "no column", [], [None, None, None]):
        yield case(f"users {users!r}", lambda u=users: from_examples(good, good, users=u), ("users", "column"))
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    wrong: dict[str, tuple[Any, Any]] = {
        "fewer targets": (x, y[:3]), "no examples": (x[:0], y[:0]), "targets of fractions": (x, y.float()),
        "negative classes": (x, y - 1), "inputs of text": ("x", y), "targets of nothing": (x, None),
        "one axis": (torch.tensor(1.0), y),
    }  # fmt: skip
    for what, (inputs, targets) in wrong.items():
        yield case(f"tensors: {what}", lambda i=inputs, t=targets: Dataset(i, t, x, y), ("train", "inputs", "targets", "test"))


def fashion(run: Run) -> Iterator[Case]:
    """Of Fashion-MNIST the published files alone are taken."""

    def case(what: str, content: bytes) -> Case:
        return Case(what, (line("fashion-mnist", "f.npz"),), ("f.npz",), holding("f.npz", content))

    images = npy_of(header_of("'|u1'", "(60000, 28, 28)"), bytes(99))
    whole = zipped(images)
    for cut in some(30, len(whole), seed=64):
        yield case(f"cut at {cut}", whole[:cut])
    for what, content in {
        "empty": b"",
        "text": b"x",
        "zeros": bytes(999),
        "npy": images,
        "pickle": pickle.dumps(Payload()),
    }.items():
        yield case(what, content)
    for kind in KINDS:
        if kind != "link":
            damage = together(holding("f.npz", b"x"), becoming("f.npz", kind))
            yield Case(f"kind {kind}", (line("fashion-mnist", "f.npz"),), ("f.npz",), damage)
