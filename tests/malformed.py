"""What hubbub must refuse: malformed files and values, family by family, each the same on every day.

A family is a function from a whole :class:`Run` to its cases. A case damages a copy of that run, or says something wrong on a
command line, and knows what the one line that refuses it must name.
"""

import dataclasses
import datetime
import hashlib
import itertools
import json
import os
import pickle
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hubbub.config import Config
from hubbub.datasets import Dataset

Damage = Callable[[], object]
# A word that the refusal must hold, or several of which one is enough.
Word = str | tuple[str, ...]
Command = tuple[str, ...]
Family = Callable[["Run"], "Iterator[Case]"]

RESUME: Command = ("resume", "run", "--allow-import")
VERIFY: Command = ("verify", "run")
LEDGER: Command = ("ledger", "run")
PLAN: Command = ("plan", "plan.toml", "--allow-import")
CLOSE: Command = ("close", "run", "--early")
EVERY = (VERIFY, RESUME, LEDGER)

CONFIG = """\
[training]
rounds = 12
cohort_size = 3

[privacy]
mode = "dp-ftrl"
noise_multiplier = 1.0

[participation]
min_separation = 3

[data]
name = "malformed:people"
clients = 12

[model]
name = "malformed:Line"
"""


class Accepted(BaseException):
    """A command went on to train with what it should have refused."""


class Line(nn.Sequential):
    """A model of eight numbers, which says so when somebody trains it who should not."""

    may_learn = False

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Linear(shape[0], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and not Line.may_learn:
            raise Accepted
        return super().forward(x)


def people(path: str | None = None) -> Dataset:
    """Two dozen examples of three numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(36, 3, generator=generator), torch.arange(36) % 2
    return Dataset(inputs[:24], targets[:24], inputs[24:], targets[24:])


@dataclass(frozen=True)
class Run:
    """An interrupted run: its files by name, and the records of its ledger.

    It began twice: the first start ended in the middle of round 4, which burned, the second after round 7 of 12. Its last
    checkpoint is that of round 6.
    """

    files: Mapping[str, bytes]

    @property
    def lines(self) -> list[bytes]:
        """Those of the ledger, each with its end."""
        return self.files["ledger.jsonl"].splitlines(keepends=True)

    @property
    def bodies(self) -> list[bytes]:
        """The records of the ledger as they are written."""
        return [canonical(record) for record in self.records()]

    def records(self) -> list[dict[str, Any]]:
        """Fresh copies of the records of the ledger."""
        return [json.loads(line)["body"] for line in self.lines]


@dataclass(frozen=True)
class Case:
    """One malformed file or value, and the commands that must refuse it."""

    name: str
    commands: tuple[Command, ...]
    words: tuple[Word, ...]
    damage: Damage


_LONG_AGO = 1_000_000_000


class Workplace:
    """A folder that can be put back as it was, whatever stands there now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        found = list(_walk(root))
        self._folders = [path for path in found if path.is_dir()][::-1]
        self._files = {path: (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in found if path.is_file()}
        for path in self._files:
            os.utime(path, (_LONG_AGO, _LONG_AGO))

    def restore(self) -> None:
        for path in _walk(self._root):
            kind = path.lstat().st_mode
            if stat.S_ISDIR(kind):
                if path not in self._folders:
                    path.rmdir()
            elif not self._as_it_was(path):
                path.unlink()
        for folder in self._folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        for path, (content, mode) in self._files.items():
            if not path.exists():
                path.write_bytes(content)
                path.chmod(mode)
                os.utime(path, (_LONG_AGO, _LONG_AGO))

    def _as_it_was(self, path: Path) -> bool:
        """Whether it is the file that was there; whoever writes to one makes it younger."""
        status = path.lstat()
        return path in self._files and (status.st_mtime, status.st_mode) == (_LONG_AGO, stat.S_IFREG | self._files[path][1])

    def stamp(self) -> dict[Path, tuple[int, ...]]:
        """What stands where, so that a later stamp tells whether a command changed anything, the lock of a run aside."""
        found = {}
        for path in _walk(self._root):
            if path.name != "lock":
                status = path.lstat()
                whole = () if stat.S_ISDIR(status.st_mode) else (status.st_ino, status.st_size, status.st_mtime_ns)
                found[path] = (status.st_mode, *whole)
        return found


def _walk(root: Path) -> Iterator[Path]:
    """All below a folder, what is inside first; no link is followed."""
    for folder, folders, files in os.walk(root, topdown=False):
        yield from (Path(folder, name) for name in (*files, *folders))


# --- damages ---


def nothing() -> None:
    """For what is wrong on the command line alone."""


def holding(name: str, content: bytes) -> Damage:
    def damage() -> None:
        kept = stat.S_IMODE(Path(name).stat().st_mode) if Path(name).exists() else 0o600
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
        Path(name).chmod(kept)

    return damage


def without(*names: str) -> Damage:
    return lambda: [Path(name).unlink() for name in names]


def having_mode(name: str, mode: int) -> Damage:
    return lambda: Path(name).chmod(mode)


def together(*damages: Damage) -> Damage:
    return lambda: [damage() for damage in damages]


KINDS = ("folder", "pipe", "link", "endless", "dangling", "loop", "void")


def becoming(name: str, kind: str) -> Damage:
    """Something else than a file, or than a folder, in its place."""

    def damage() -> None:
        path = Path(name)
        path.rename("elsewhere")
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "link":
                path.symlink_to(Path("elsewhere").absolute())
            case "endless":
                path.symlink_to("/dev/zero")
            case "dangling":
                path.symlink_to("nowhere")
            case "loop":
                path.symlink_to(path.name)
            case "void":
                path.symlink_to("/dev/null")
            case "file":
                path.write_bytes(b"a file")

    return damage


# --- bytes ---


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


def forged(bodies: Iterable[bytes]) -> Damage:
    return holding("run/ledger.jsonl", chained(bodies))


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
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "uint8": "U8"}
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


# --- settings ---

WHOLE = {
    "training": ("rounds", "local_epochs", "batch_size", "evaluate_every", "seed", "cohort_size"),
    "privacy": ("bands",),
    "participation": ("min_separation", "max_participations", "epochs", "rounds_per_epoch"),
    "data": ("clients",),
}
REAL = {
    "training": ("learning_rate", "momentum", "weight_decay", "server_learning_rate", "server_momentum", "validation"),
    "privacy": ("clip_norm", "noise_multiplier", "epsilon", "delta", "stop_epsilon"),
    "data": ("alpha",),
}
OTHER = {
    "training": ("server_optimizer", "keep_releases"),
    "privacy": ("mode", "strategy", "matrix", "sampling", "noise", "unit", "neighboring_relation", "accountant"),
    "participation": ("pattern",),
    "data": ("name", "path", "partition"),
    "model": ("name",),
    "secagg": ("scheme",),
}
NO_WHOLE = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 30, "false", "[3]", "{ a = 1 }", '"7"', "3.0", "1979-05-27T07:32:00Z")
NO_REAL = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 400, "1e13", "false", "[0.5]", "{ a = 1 }", '"0.5"', "07:32:00", "0.5.5")
NO_TEXT = ("nan", "3", "true", "[1]", "1979-05-27", '"\\u001b[31mred"')


def every_key() -> Iterator[tuple[str, str]]:
    for section in dataclasses.fields(Config):
        for key in dataclasses.fields(type(getattr(Config(), section.name))):
            yield section.name, key.name


def parsed(text: str) -> object:
    """The value as TOML has it; what is none is a bare word."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def shown(text: str) -> Word:
    """How a message may show a value: as it was given, or as the number that it became."""
    value = parsed(text)
    if isinstance(value, bool | str | list | dict | datetime.date | datetime.time):
        return repr(value)
    try:
        return (repr(value), repr(float(str(value))))
    except OverflowError:
        return repr(value)


def wrong_settings(whole: Iterable[str], real: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for keys, values in ((WHOLE, whole), (REAL, real)):
        for section, names in keys.items():
            yield from ((section, name, value) for name in names for value in values)


def _may_be(key: str, text: str) -> bool:
    """More participations than there are rounds are promised in vain, but they are a promise; so are more epochs."""
    return key in ("max_participations", "epochs", "rounds_per_epoch") and text.startswith("1000")


def numbers_by_flag(run: Run) -> Iterator[Case]:
    for section, key, text in wrong_settings(NO_WHOLE, NO_REAL):
        if not _may_be(key, text):
            # What is too long for a float is not shown in full.
            value = ("too large",) if len(text) > 100 else (shown(text),)
            command = (*PLAN, "--set", f"{section}.{key}={text}")
            # Whoever joins settings names them without their section.
            yield Case(f"{section}.{key}={text[:40]}", (command,), ((f"{section}.{key}", f"{key} = "), *value), nothing)


def numbers_in_a_file(run: Run) -> Iterator[Case]:
    odd = ("nan", "-inf", "1e400", "1979-05-27", "[nan]", "[[1], [2]]")
    nested = "[plan.toml nested]"
    for section, key, text in wrong_settings((*odd, nested), (*odd, "true", nested)):
        line = f"[{section}.{key}]\nvalue = 3\n" if text is nested else f"[{section}]\n{key} = {text}\n"
        value = "{'value': 3}" if text is nested else shown(text)
        damage = holding("bad.toml", line.encode())
        yield Case(f"{section}.{key} = {text}", (("plan", "bad.toml"),), (f"{section}.{key}", value), damage)


def words_that_are_none(run: Run) -> Iterator[Case]:
    for section, keys in OTHER.items():
        for key, text in itertools.product(keys, NO_TEXT):
            # A path is whatever the loader takes it for.
            if key != "keep_releases" and not (key == "path" and "red" in text):
                name = f"{section}.{key}={text}"
                short: Word = (f"{section}.{key}", f"{key} = ") if "u001b" in text else f"{section}.{key}"
                yield Case(name, ((*PLAN, "--set", name),), (short, repr(parsed(text))), nothing)
    for text in ("nan", "1", "0", "yes", "[true]", '"true"'):
        name = f"training.keep_releases={text}"
        yield Case(name, ((*PLAN, "--set", name),), ("training.keep_releases", repr(parsed(text))), nothing)


def swapped(word: str) -> str:
    """The word with its first two unlike neighbours in the wrong order."""
    at = next(i for i in range(1, len(word) - 1) if word[i] != word[i + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def misspelt_names(run: Run) -> Iterator[Case]:
    for section, key in every_key():
        for wrong in (swapped(key), key[1:], key + "x"):
            words = (f"{section}.{wrong}", f"did you mean '{key}'")
            yield Case(f"--set {section}.{wrong}", ((*PLAN, "--set", f"{section}.{wrong}=1"),), words, nothing)
        wrong = key[:-1] + key[-1] * 2
        damage = holding("bad.toml", f"[{section}]\n{wrong} = 1\n".encode())
        words = (f"{section}.{wrong}", f"did you mean '{key}'")
        yield Case(f"{section}.{wrong} in a file", (("plan", "bad.toml"),), words, damage)
    for section in dataclasses.fields(Config):
        for wrong in (swapped(section.name), section.name[1:], section.name + "s"):
            damage = holding("bad.toml", f"[{wrong}]\n".encode())
            words = (f"[{wrong}]", f"did you mean '{section.name}'")
            yield Case(f"[{wrong}]", (("plan", "bad.toml"),), words, damage)
    for wrong in ("tool", "hubbub", "0", "DEFAULT"):
        yield Case(f"[{wrong}]", (("plan", "bad.toml"),), (f"[{wrong}]",), holding("bad.toml", f"[{wrong}]\n".encode()))


# --- config files ---


NO_TOML = r"""
rounds
rounds =
= 3
rounds = 1 2
rounds = 01
rounds = 1__0
rounds = 0x
rounds = 1e
rounds = .5
rounds = 5.
rounds = +-1
rounds = Infinity
rounds = NaN
rounds = None
rounds = True
rounds = 3 rounds
rounds = [1
rounds = {a = 1
rounds = {a = 1,}
rounds = "3
rounds = '3
rounds = \"\"\"3
rounds = "\x"
rounds = "\ud800"
rounds = 1979-13-01
rounds = 25:00:00
rounds = 1\nrounds = 2
rounds.a = 1\nrounds.a = 2
a = 1\na.b = 2
[training
[training]]
[[training]
[]
[training.]
[training]\n[training]
[training.rounds]\n[training.rounds]
rounds = 3 // three
rounds = $HOME
""".strip().splitlines()


def broken_toml(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What is no TOML, made from what is."""
    at = 0
    for line in content.splitlines(keepends=True):
        # Up to the equals sign, or inside the brackets, a line is not whole.
        end = line.find(b"]") if line.startswith(b"[") else line.find(b"=") + 1
        for cut in {1, end // 2, end} - {0, -1} if end > 0 else set():
            yield f"cut at {at + cut}", content[: at + cut]
        at += len(line)
    places = some(12, len(content), seed=4)
    for odd in (b"\0", b"\x7f", b"\x1b", b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xc0\xaf"):
        for place in places[:: 2 if len(odd) > 1 else 1]:
            yield f"{odd!r} at {place}", content[:place] + odd + content[place:]
    yield "UTF-16", content.decode().encode("utf-16-le")
    yield "UTF-32", content.decode().encode("utf-32")
    yield "byte order mark in the middle", content + b"\xef\xbb\xbf[secagg]\n"
    yield "carriage returns", content.replace(b"\n", b"\r")
    yield "compressed", zlib.compress(content)
    yield "pickled", pickle.dumps({"training": {"rounds": 1}})
    yield "JSON", json.dumps(tomllib.loads(content.decode())).encode()
    yield "YAML", content.replace(b" = ", b": ")
    yield "twice", content + content
    for line in (*NO_TOML, "rounds = " + "[" * 20_000, "rounds = " + "{a=" * 20_000, "a" * 5 + ".b" * 3000 + " = "):
        yield line[:40], line.replace("\\n", "\n").encode() + b"\n" + content


def config_files(run: Run) -> Iterator[Case]:
    for number, (name, content) in enumerate(broken_toml(CONFIG.encode())):
        command = "train" if number % 3 else "plan"
        yield Case(name, ((command, "bad.toml"),), ("bad.toml", "TOML"), holding("bad.toml", content))


def configs_of_runs(run: Run) -> Iterator[Case]:
    content = run.files["config.toml"]
    content = content[content.index(b"\n") + 1 :]
    for name, broken in list(broken_toml(content))[::6]:
        yield Case(name, (RESUME,), ("run/config.toml", "TOML"), holding("run/config.toml", broken))


# --- flags ---

ACCOUNT: Command = ("account", "--rounds", "6", "--delta", "1e-5")
NOISY: Command = (*ACCOUNT, "--noise-multiplier", "1")
CALIBRATE: Command = ("calibrate", "--rounds", "6", "--delta", "1e-5", "--epsilon", "2")
BANDED = ("--strategy", "banded", "--bands", "2", "--column-norm-squared", "1")
WHOLE_FLAGS: dict[str, Command] = {
    "--rounds": (),
    "--bands": ("--strategy", "banded-toeplitz"),
    "--min-separation": (),
    "--max-participations": (),
    "--epochs": ("--rounds-per-epoch", "2"),
    "--rounds-per-epoch": (),
    "--cohort-size": ("--population", "9"),
    "--population": ("--cohort-size", "2"),
}
REAL_FLAGS: dict[str, Command] = {"--delta": (), "--sampling-probability": (), "--column-norm-squared": BANDED}
ODD = ("-inf", "1e999", "0,5", "½", "ten", " ", "\x1b[31m3", "1e", "NaN(1)", "[3]", "3;4", "1\u202e2", "None", "--3")
NO_WHOLE_FLAG = (*ODD, "-7", "0x10", "1.0", "9" * 5000, "1e3", "infinity")
NO_REAL_FLAG = (*ODD, "-0.5", "0x1p3", "1d5", "9" * 5000, "1e-400", "infinity", "-1e-5")


def given(flag: str, text: str) -> tuple[Word, Word]:
    """How a message may name a flag and what it got."""
    values = [repr(text[:40])]
    for kind in (int, float):
        try:
            values.append(repr(kind(text)))
        except ValueError:
            continue
    return (flag, flag[2:].replace("-", "_")), tuple(values)


def flags(run: Run) -> Iterator[Case]:
    tables = ((WHOLE_FLAGS, NO_WHOLE_FLAG), (REAL_FLAGS, NO_REAL_FLAG))
    for number, (known, values) in enumerate(tables):
        for (flag, needs), text in itertools.product(known.items(), values):
            base = CALIBRATE if (number + len(text)) % 2 else NOISY
            yield Case(f"{base[0]} {flag} {text[:40]!r}", ((*base, *needs, flag, text),), given(flag, text), nothing)
    for base, flag in ((ACCOUNT, "--noise-multiplier"), (ACCOUNT, "--clip-noise-multiplier"), (CALIBRATE, "--epsilon")):
        for text in NO_REAL_FLAG:
            yield Case(f"{flag} {text[:40]!r}", ((*base, flag, text),), given(flag, text), nothing)


def kept_heads(run: Run) -> Iterator[Case]:
    head = json.loads(run.lines[-1])["hash"]
    odd = ("", " ", "0", "0" * 64, head[:-1], head + "0", head[::-1], f"sha256:{head}", " " + head, "\x1b[31m" + head, "é" * 64)
    more = (head[:-1] + "\u0430", "9" * 5000, "../" + head, "[/red]", "None", "nan", "-1", head + "\n", "\0", "\udcff")
    for text in (*odd, *more):
        commands = (("verify", "run", "--head", text), ("resume", "run", "--allow-import", "--head", text))
        yield Case(repr(text[:100]), commands, ("head", "ledger.jsonl"), nothing)


# --- the ledger ---


def ledger_bits(run: Run) -> Iterator[Case]:
    content = run.files["ledger.jsonl"]
    commands = itertools.cycle([(VERIFY,), (LEDGER,), (VERIFY,), (RESUME,), (VERIFY,), (CLOSE,)])
    # The end of the last line may be lost: the line before it tells that it is whole.
    for bit in some(300, 8 * (len(content) - 1), seed=6):
        words = ("run/ledger.jsonl", "line")
        yield Case(f"bit {bit}", next(commands), words, holding("run/ledger.jsonl", flipped(content, bit)))


def ledger_lines(run: Run) -> Iterator[Case]:
    def case(name: str, lines: Iterable[bytes], commands: tuple[Command, ...]) -> Case:
        return Case(name, commands, ("run/ledger.jsonl", "line"), holding("run/ledger.jsonl", b"".join(lines)))

    lines, content = run.lines, run.files["ledger.jsonl"]
    last = len(lines) - 1
    two = itertools.cycle([(VERIFY,), (RESUME,), (LEDGER,), (CLOSE,)])
    for i in range(last):
        yield case(f"without line {i + 1}", lines[:i] + lines[i + 1 :], next(two))
        yield case(f"lines {i + 1} and {i + 2} swapped", [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]], next(two))
    for i, line in enumerate(lines):
        yield case(f"line {i + 1} twice", [*lines[:i], line, *lines[i:]], next(two))
        yield case(f"line {i + 1} again at the end", [*lines, line], next(two))
        # A blank line at the very end is one, too.
        yield case(f"a blank line after line {i + 1}", [*lines[: i + 1], b"\n", *lines[i + 1 :]], next(two))
    for begin in some(30, len(content) - len(lines[-1]) - 60, seed=71):
        span = 1 + begin % 50
        yield case(f"without bytes {begin} to {begin + span}", [content[:begin], content[begin + span :]], next(two))
    yield case("backwards", lines[::-1], EVERY)
    yield case("twice", lines * 2, EVERY)
    yield case("Windows line ends", [line[:-1] + b"\r\n" for line in lines], EVERY)
    yield case("a byte order mark", [b"\xef\xbb\xbf", *lines], EVERY)
    yield case("spaces", [line.replace(b'":', b'": ') for line in lines], EVERY)
    yield case("compressed", [zlib.compress(content)], EVERY)


def rolled_back(run: Run) -> Iterator[Case]:
    """The last k records are gone; by one record the folder may have been left by a crash."""
    lines, head = run.lines, json.loads(run.lines[-1])["hash"]
    kept = (("verify", "run", "--head", head), ("resume", "run", "--allow-import", "--head", head))
    turns = itertools.cycle([VERIFY, RESUME])
    for k in range(1, len(lines)):
        less = holding("run/ledger.jsonl", b"".join(lines[:-k]))
        begun = sum(b'"kind":"begin"' in line for line in lines[:-k])
        late = [f"run/{name}" for name in run.files if _round_of(name) is not None and _round_of(name) >= begun]
        yield Case(f"by {k}, the head is known", kept, (("head", "metrics.jsonl"), "rolled back"), less)
        yield Case(
            f"by {k}, all else is gone", kept[k % 2 :][:1], ("head",), together(less, without(*late, "run/metrics.jsonl"))
        )
        torn = holding("run/ledger.jsonl", b"".join(lines[:-k]) + lines[-k][:50])
        if k > 1:
            yield Case(f"by {k}", (VERIFY, RESUME), (("release", "metrics.jsonl"),), less)
            yield Case(f"by {k} and a half", (next(turns),), (("release", "metrics.jsonl"),), torn)
            yield Case(f"by {k}, with its releases", (next(turns),), ("metrics.jsonl",), together(less, without(*late)))
        if begun < 6:
            gone = together(less, without(*late, "run/metrics.jsonl"))
            yield Case(f"by {k}, with releases and metrics", (RESUME,), ("run", "rolled back"), gone)
    yield Case("by all", EVERY, ("run/ledger.jsonl",), holding("run/ledger.jsonl", b""))


def _round_of(name: str) -> int | None:
    folder, _, file = name.rpartition("/")
    return int(file.partition(".")[0]) if folder == "state/releases" else None


WRONG = {
    "null": None,
    "true": True,
    "-1": -1,
    "1.5": 1.5,
    "text": "\x1b[31m[/red]",
    "list": [1],
    "table": {"a": 1},
    "huge": 10**30,
}
# What a record may hold: any text for a unit, any settings, no mechanism, a bound on participations that no client reaches,
# and a clip norm of the same lattice.
FREE = {
    ("privacy_unit", "text"),
    ("max_participations", "huge"),
    ("settings", "table"),
    ("mechanism", "null"),
    ("clip_norm", "1.5"),
}
KINDS_OF_RECORD = {"promise": 0, "epoch": 1, "begin": 2, "commit": 3, "burn": 11}


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


def forged_types(run: Run) -> Iterator[Case]:
    """Each value of each kind of record, missing or of another type, under hashes that are right."""
    bodies, number = run.bodies, itertools.count()
    for kind, index in KINDS_OF_RECORD.items():
        for path in leaves(run.records()[index]):
            values: dict[str, tuple[Any, ...]] = {"nothing": ()} | {name: (value,) for name, value in WRONG.items()}
            # A stated number may be wrong in the type or in the value; that of another name then no longer fits.
            other = ("stddev", "epsilon", "l2_sensitivity") if path[0] == "mechanism" else ()
            # Where no round begins, the metrics show it first.
            field = (path[-1], f"line {index + 1}", "metrics.jsonl") if kind != "promise" else (*path, *other)
            for name, value in values.items():
                if (path[-1], name) not in FREE:
                    body = changed(run.records()[index], path, *value)
                    commands = (VERIFY, RESUME) if next(number) % 4 == 0 else (VERIFY,)
                    words: tuple[Word, ...] = (("ledger", "promise"), field)
                    damage = forged([*bodies[:index], body, *bodies[index + 1 :]])
                    yield Case(f"{kind}: {'.'.join(path)}: {name}", commands, words, damage)


def forged_json(run: Run) -> Iterator[Case]:
    """Records that are no strict JSON, under hashes that are right."""
    bodies = run.bodies
    for index in KINDS_OF_RECORD.values():
        body = bodies[index]
        begin, inner = body[:1], body[1:]
        for name, odd in {
            "NaN": begin + b'"a":NaN,' + inner,
            "Infinity": begin + b'"a":-Infinity,' + inner,
            "1e999": begin + b'"a":1e999,' + inner,
            "twice": begin + inner[:-1] + b"," + inner,
            "kind twice": begin + b'"kind":"close",' + inner,
            "deep": begin + b'"a":' + b"[" * DEEP + b"]" * DEEP + b"," + inner,
            "long number": begin + b'"a":' + b"9" * DEEP + b"," + inner,
            "control character": begin + b'"a":"\x01",' + inner,
            "no UTF-8": begin + b'"a":"\xff",' + inner,
            "torn": body[: len(body) // 2],
            "empty": b"",
            "null": b"null",
            "list": b"[" + body + b"]",
            "text": b'"promise"',
            "two": body + body,
            "comment": body + b"/* */",
            "single quotes": body.replace(b'"', b"'"),
        }.items():
            damage = forged([*bodies[:index], odd, *bodies[index + 1 :]])
            commands = (VERIFY,) if index else EVERY
            yield Case(f"line {index + 1}: {name}", commands, ("run/ledger.jsonl", f"line {index + 1}"), damage)


def _sequences(run: Run) -> Iterator[tuple[str, list[dict[str, Any]], Word]]:
    """Records that are whole, in an order that cannot be; and what the refusal names."""
    records = run.records
    begin, commit, burn, epoch = ({**records()[i]} for i in (2, 3, 11, 12))
    end = len(records())

    def after(index: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
        return [*records()[:index], *more, *records()[index:]]

    later = {**begin, "round": 8, "epoch": 1, "clients": []}
    done = {**commit, "round": 8}
    line = f"line {end + 1}"
    for number in (-1, 0, 7, 9, 11, 12, 10**6):
        yield f"begin of round {number}", after(end, {**later, "round": number}), line
        yield f"commit of round {number}", after(end, later, {**done, "round": number}), f"line {end + 2}"
        yield f"burn of round {number}", after(end, later, {**burn, "round": number}), f"line {end + 2}"
        yield f"epoch {number}", after(end, {**epoch, "epoch": number}), line
    for kind in ("", "Begin", "begin ", "promise", "rollback", "__init__", "\x1b[31m"):
        yield f"kind {kind!r}", after(end, {**burn, "kind": kind}), line
    yield "commit without begin", after(end, done), line
    yield "burn without begin", after(end, {**burn, "round": 8}), line
    yield "commit twice", after(4, commit), "line 5"
    yield "burn after commit", after(4, {**burn, "round": 0}), "line 5"
    yield "begin twice", after(3, begin), "line 4"
    yield "an epoch in a round", after(3, {**epoch, "epoch": 1}), "line 4"
    yield "an epoch twice", after(2, records()[1]), "line 3"
    yield "a begin before the first epoch", [records()[0], begin, *records()[1:]], "line 2"
    yield "a close in a round", after(end, later, {"kind": "close"}), f"line {end + 2}"
    yield "a round after the close", after(end, {"kind": "close"}, later), f"line {end + 2}"
    yield "two closes", after(end, {"kind": "close"}, {"kind": "close"}), (f"line {end + 2}", "closed")
    yield "a second promise", after(end, records()[0]), line
    yield "rows of noise that go back", after(end, {**epoch, "epoch": 2, "first_row": 4}), line
    yield "begin in the epoch before", after(end, {**later, "epoch": 0}), line
    yield "begin in a later epoch", after(end, {**later, "epoch": 2}), line
    yield "begin in epoch true", after(end, {**later, "epoch": True}), line
    client = begin["clients"][0]
    yield "a client twice in a round", after(end, {**later, "clients": [client, client]}), line
    for odd in (client.upper(), client[:-1], client + "0", "alice", "", "\x1b[31m", "g" * 32, " " * 32):
        yield f"client {odd!r}", after(end, {**later, "clients": [odd]}), line
    for odd in (commit["release"].upper(), commit["release"][:-1], "", "0x" + "0" * 62, "\u0660" * 64):
        yield f"release {odd!r}", after(end, later, {**done, "release": odd}), f"line {end + 2}"
        yield f"sum {odd!r}", after(end, {**later, "sum": odd}), line
    many = [{**later, "round": 8 + i // 2} if i % 2 == 0 else {**burn, "round": 8 + i // 2} for i in range(10)]
    yield "more rounds than were promised", after(end, *many), "rounds"
    for rounds in ([0, 1], [0, 2], [2, 3], [5, 6], [0, 3, 5], [0, 3, 6, 7], list(range(8))):
        broken = records()
        for record in broken:
            if record["kind"] == "begin" and record["round"] in rounds:
                record["clients"] = [*(c for c in record["clients"] if c != client), client]
        yield f"a client in rounds {rounds}", broken, ("participation", "took part", "broke")


def forged_order(run: Run) -> Iterator[Case]:
    for number, (name, records, word) in enumerate(_sequences(run)):
        commands = (VERIFY, RESUME) if number % 3 == 0 or "client in" in name else (VERIFY,)
        # To close a run needs records that follow each other, whatever they promise.
        commands += (CLOSE,) if isinstance(word, str) and "line" in word and number % 3 == 1 else ()
        where = ("ledger", "participation", "rounds", "run")
        yield Case(name, commands, (where, word), forged(canonical(record) for record in records))


Change = tuple[tuple[str, ...], Any]
PATTERN, STRATEGY = ("mechanism", "participation"), ("mechanism", "strategy")
PARTICIPATIONS: tuple[dict[str, Any], ...] = (
    {"name": "SingleParticipation"},
    {"name": "PoissonSampling", "sampling_probability": 0.01},
    {"name": "FixedSizeSampling", "cohort_size": 1, "population": 1000},
    {"name": "FixedEpochs", "epochs": 1, "rounds_per_epoch": 12},
    {"name": "FixedEpochs", "epochs": 10**9, "rounds_per_epoch": 10**9},
    {"name": "MinSeparation"},
    {"name": "MinSeparation", "min_separation": 3, "max_participations": 4, "more": 1},
    {"name": "Nobody"},
    {"name": "malformed:people"},
    {},
)
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"name": "Identity", "rounds": 12},
    {"name": "Identity", "rounds": 11},
    {"name": "Identity", "rounds": 10**18},
    {"name": "BinaryTree", "rounds": 12},
    {"name": "BinaryTree", "rounds": 10**7},
    {"name": "BinaryTree", "rounds": 10**18},
    {"name": "Columns", "rounds": 12, "bands": 1, "squared_norm": 1e-12},
    {"name": "Dense"},
    {"name": "Described", "class": "malformed.Line", "rounds": 12},
    {"name": "Nothing", "rounds": 12},
    {"name": "malformed:people", "rounds": 12},
    {},
)


def _false_mechanisms(stated: Mapping[str, Any]) -> Iterator[tuple[str, Word, tuple[Change, ...]]]:
    """What a promise may say of its mechanism that is not so; and what the refusal names."""
    for name in ("noise_multiplier", "stddev", "l2_sensitivity", "epsilon"):
        for factor in (0.0, 1e-300, 0.5, 0.999999, 1.000001, 2.0, 1e6, -1.0):
            words = (name, "stddev", "noise_multiplier")
            yield f"{name} times {factor}", words, ((("mechanism", name), stated[name] * factor),)
    for b, k in ((1, 4), (2, 4), (4, 4), (12, 4), (10**9, 4), (3, 1), (3, 2), (3, 3), (0, 4), (-3, 4), (3, 0), (3, -1)):
        changes = (((*PATTERN, "min_separation"), b), ((*PATTERN, "max_participations"), k))
        yield f"separation {b}, participations {k}", ("participation", "l2_sensitivity", "separation"), changes
    for other in PARTICIPATIONS:
        words = ("participation", "cohorts", "Participation", "Sampling", "Epochs", "MinSeparation", "name")
        yield f"participation {other}", words, ((PATTERN, other),)
    for other in STRATEGIES:
        words = ("strategy", "stddev", "l2_sensitivity", "rounds", "name", "Dense", "Described")
        yield f"strategy {other}", words, ((STRATEGY, other),)
    for relation in ("", "none", "add-or-remove-one", "replace-one", "\x1b[31m"):
        changes = ((("mechanism", "neighboring_relation"), relation),)
        yield f"relation {relation!r}", ("relation", "epsilon"), changes
    yield "no mechanism", ("epsilon", "mechanism"), ((("mechanism",), None),)


def _false_promises() -> Iterator[tuple[str, Word, tuple[Change, ...]]]:
    """What else a promise may say that is not so."""
    for rounds in (0, 7, 11, 10**18):
        of_C = ((*STRATEGY, "rounds"), rounds)
        yield f"{rounds} rounds", "rounds", ((("rounds",), rounds),)
        yield f"{rounds} rounds of C", ("rounds", "sensitivity"), (of_C,)
        yield f"{rounds} rounds of both", ("rounds", "sensitivity", "epsilon"), (of_C, (("rounds",), rounds))
    for schema in (0, 1, 3, 99, "2", None, [2]):
        yield f"schema {schema!r}", "schema", ((("schema",), schema),)
    for delta in (0.0, 1.0, -1e-5, 1e-300, 0.5):
        yield f"delta {delta}", ("delta", "epsilon"), ((("delta",), delta),)
    for accountant in ("", "loose", "TIGHT", "\x1b[31m"):
        yield f"accountant {accountant!r}", "accountant", ((("accountant",), accountant),)
    for noise in ("", "none", "Secure", "\x1b[31m"):
        yield f"noise {noise!r}", ("noise", "simulation"), ((("noise",), noise),)


def forged_promises(run: Run) -> Iterator[Case]:
    """A promise whose numbers do not fit each other, its strategy or what happened: verify says so, resume refuses it."""
    turns = itertools.cycle([(VERIFY, RESUME), (VERIFY,), (VERIFY,)])
    for name, words, changes in (*_false_mechanisms(run.records()[0]["mechanism"]), *_false_promises()):
        record = run.records()[0]
        for path, value in changes:
            record = json.loads(changed(record, path, value))
        commands = EVERY if "schema" in name else next(turns)
        yield Case(name, commands, (("ledger", "promise"), words), forged([canonical(record), *run.bodies[1:]]))
    for key, value in run.records()[0]["settings"].items():
        other = value + 1 if isinstance(value, int | float) else value + "x"
        damage = forged([changed(run.records()[0], ("settings", key), other), *run.bodies[1:]])
        yield Case(f"settings.{key}", (RESUME,), ("ledger", key), damage)


# --- checkpoints ---


def manifests(run: Run) -> Iterator[Case]:
    name = "run/state/checkpoint.json"

    def case(what: str, content: bytes | dict[str, Any]) -> Case:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        return Case(what, (RESUME,), ("checkpoint.json",), holding(name, text))

    whole = run.files["state/checkpoint.json"]
    good = json.loads(whole)
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    for cut in some(12, len(whole) - 1, seed=9):
        yield case(f"cut at {cut}", whole[:cut])
    values: dict[str, Any] = {"null": None, "true": True, "-1": -1, "1.5": 1.5, "text": "\x1b[31m", "list": [6], "huge": 10**30}
    for path in leaves(good):
        yield case(f"no {'.'.join(path)}", changed(json.loads(whole), path))
        for kind, value in values.items():
            yield case(f"{'.'.join(path)}: {kind}", changed(json.loads(whole), path, value))
    for rounds in (0, 3, 7, 9, 12, 13, "6", 6.5, [6], 10**4000):
        yield case(f"rounds {str(rounds)[:20]}", {**good, "rounds": rounds})
    for schema in (0, 2, 99, "1", None):
        yield case(f"schema {schema!r}", {**good, "schema": schema})
    for head in ("", "0" * 64, good["head"].upper(), good["head"][:-1]):
        yield case(f"head {head[:10]!r}", {**good, "head": head})
    odd_names = "../state/checkpoint-6.safetensors /etc/passwd . checkpoint-6 checkpoint-06.safetensors \0 \x1b[31m".split()
    for odd in (*odd_names, ""):
        yield case(f"{odd!r} for a name", {**good, "files": {odd: good["files"][checkpoint], noise: good["files"][noise]}})
        yield case(f"{odd!r} beside the names", {**good, "files": {**good["files"], odd: good["files"][checkpoint]}})
    yield case("the files swapped", {**good, "files": {checkpoint: good["files"][noise], noise: good["files"][checkpoint]}})
    yield case("no file of the noise", {**good, "files": {checkpoint: good["files"][checkpoint]}})
    yield case("no file of the model", {**good, "files": {noise: good["files"][noise]}})
    begin, inner = whole[:1], whole[1:]
    for what, text in {
        "empty": b"",
        "blank": b" \n",
        "NaN": whole.replace(b'"rounds":6', b'"rounds":NaN'),
        "1e999": whole.replace(b'"rounds":6', b'"rounds":1e999'),
        "-Infinity": whole.replace(b'"rounds":6', b'"rounds":-Infinity'),
        "a NaN that nobody reads": begin + b'"a":NaN,' + inner,
        "rounds twice": begin + b'"rounds":6,' + inner,
        "files twice": begin + b'"files":{},' + inner,
        "deep": begin + b'"a":' + b"[" * DEEP + b"]" * DEEP + b"," + inner,
        "long number": whole.replace(b'"rounds":6', b'"rounds":' + b"9" * DEEP),
        "no UTF-8": begin + b'"a":"\xff",' + inner,
        "UTF-16": whole.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + whole,
        "zeros": bytes(len(whole)),
        "more behind it": whole + b"{}",
        "a comma too many": whole[:-1] + b",}",
        "comment": whole + b"// last",
        "single quotes": whole.replace(b'"', b"'"),
        "two mebibytes": whole + b" " * 2**21,
        "null": b"null",
        "a number": b"6",
        "pickle": pickle.dumps(good),
    }.items():
        yield case(what, text)


def _with_digest(run: Run, name: str, content: bytes, count: int | None = None) -> Damage:
    """A file of the checkpoint, and a manifest that says that it is right."""
    manifest = json.loads(run.files["state/checkpoint.json"])
    entry = manifest["files"][name]
    entry |= {"sha256": sha256(content), "bytes": len(content)}
    if count is not None:
        entry["tensors"] = count
    return together(holding(f"run/state/{name}", content), holding("run/state/checkpoint.json", canonical(manifest)))


def checkpoint_bits(run: Run) -> Iterator[Case]:
    for name, seed in (("checkpoint-6.safetensors", 101), ("noise-6.safetensors", 102)):
        content = run.files[f"state/{name}"]
        for bit in some(45, 8 * len(content), seed):
            damage = holding(f"run/state/{name}", flipped(content, bit))
            yield Case(f"{name}: bit {bit}", (RESUME,), (name, "SHA-256"), damage)
        for cut in some(15, len(content), seed + 10):
            yield Case(f"{name}: cut at {cut}", (RESUME,), (name,), holding(f"run/state/{name}", content[:cut]))


def checkpoint_formats(run: Run) -> Iterator[Case]:
    for name in ("checkpoint-6.safetensors", "noise-6.safetensors"):
        for what, content in attacks(run.files[f"state/{name}"]):
            yield Case(f"{name}: {what}", (RESUME,), (name,), _with_digest(run, name, content))


def noise_rows() -> dict[str, np.ndarray]:
    """What a run of three bands remembers of its noise."""
    return {"drawn": np.array(6), "memory__000000": np.ones(8), "memory__000001": np.ones(8)}


def checkpoint_tensors(run: Run) -> Iterator[Case]:
    """Files of the right format that hold no state of this run, under digests that are right."""
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    model = np.arange(8, dtype=np.float32)
    for what, arrays in {
        "NaN": {"model": model * np.float32("nan")},
        "one NaN": {"model": np.where(model == 3, np.float32("nan"), model)},
        "infinity": {"model": np.where(model == 3, np.float32("inf"), model)},
        "whole numbers": {"model": np.arange(8)},
        "float16": {"model": model.astype(np.float16)},
        "truths": {"model": model > 3},
        "short": {"model": model[:7]},
        "long": {"model": np.arange(9, dtype=np.float32)},
        "folded": {"model": model.reshape(2, 4)},
        "one number": {"model": model[0]},
        "empty": {"model": model[:0]},
        "other name": {"weights": model},
        "nothing": {},
    }.items():
        damage = _with_digest(run, checkpoint, tensors(**arrays), len(arrays))
        yield Case(f"model: {what}", (RESUME,), (("checkpoint",),), damage)
    six, row, good = np.array(6), np.ones(8), noise_rows()
    for what, changes in {
        "drawn -1": {"drawn": np.array(-1)},
        "drawn 5": {"drawn": np.array(5)},
        "drawn 7": {"drawn": np.array(7)},
        "drawn 10^15": {"drawn": np.array(10**15)},
        "drawn 6.5": {"drawn": np.array(6.5)},
        "drawn NaN": {"drawn": np.array(np.nan)},
        "drawn infinity": {"drawn": np.array(np.inf)},
        "drawn true": {"drawn": np.array(True)},
        "drawn twice": {"drawn": np.array([6, 6])},
        "drawn empty": {"drawn": np.array([], dtype=np.int64)},
        "a row of NaN": {"memory__000001": row * np.nan},
        "a row with infinity": {"memory__000001": np.where(np.arange(8) == 2, np.inf, row)},
        "a row of whole numbers": {"memory__000001": np.arange(8)},
        "a row of truths": {"memory__000001": row > 0},
        "a short row": {"memory__000001": row[:7]},
        "a long row": {"memory__000001": np.ones(9)},
        "a folded row": {"memory__000001": row.reshape(2, 4)},
        "a row too many": {"memory__000002": row},
        "a row of another name": {"extra": row},
    }.items():
        arrays = {**good, **changes}
        yield Case(f"noise: {what}", (RESUME,), (("noise",),), _with_digest(run, noise, tensors(**arrays), len(arrays)))
    for gone in good:
        arrays = {name: array for name, array in good.items() if name != gone}
        damage = _with_digest(run, noise, tensors(**arrays), len(arrays))
        yield Case(f"noise: no {gone}", (RESUME,), (("noise",),), damage)
    both = tensors(drawn=six), 1
    yield Case("noise: no rows", (RESUME,), (("noise",),), _with_digest(run, noise, *both))


# --- releases ---


def _released(run: Run, content: bytes) -> Damage:
    """Another release of the last round, and a ledger that says that it is right."""
    records = run.records()
    records[-1]["release"] = sha256(content)
    return together(holding("run/state/releases/7.safetensors", content), forged(canonical(record) for record in records))


def releases(run: Run) -> Iterator[Case]:
    names = [name for name in run.files if _round_of(name) is not None]
    for name in names:
        content, number = run.files[name], _round_of(name) or 0
        # Those before the checkpoint are not needed to go on.
        commands = (VERIFY, RESUME) if number >= 6 else (VERIFY,)
        words: tuple[Word, ...] = (("release", f"{number}.safetensors"), str(number))
        for bit in some(8, 8 * len(content), seed=110 + number):
            yield Case(f"{name}: bit {bit}", commands, words, holding(f"run/{name}", flipped(content, bit)))
        for cut in some(3, len(content), seed=120 + number):
            yield Case(f"{name}: cut at {cut}", commands, words, holding(f"run/{name}", content[:cut]))
        yield Case(f"{name}: longer", commands, words, holding(f"run/{name}", content + b"\0"))
        yield Case(f"{name}: missing", commands, words, without(f"run/{name}"))
        other = run.files[names[(names.index(name) + 1) % len(names)]]
        yield Case(f"{name}: another round's", commands, words, holding(f"run/{name}", other))
    content = run.files["state/releases/7.safetensors"]
    for number in (8, 9, 11, 12, 10**6, 10**200):
        damage = holding(f"run/state/releases/{number}.safetensors", content)
        yield Case(f"of round {number}", (VERIFY, RESUME), ("release", str(number)), damage)
    burned = holding("run/state/releases/4.safetensors", content)
    yield Case("of the round that burned", (VERIFY,), ("release", "4"), burned)


def release_formats(run: Run) -> Iterator[Case]:
    whole = run.files["state/releases/7.safetensors"]
    words = (("7.safetensors", "release"), "7")
    for number, (what, content) in enumerate(attacks(whole)):
        yield Case(what, (RESUME,) if number % 2 else (VERIFY,), words, _released(run, content))
    values = np.frombuffer(opened(whole)[1])
    for what, arrays in {
        "NaN": {"release": values * np.nan},
        "one NaN": {"release": np.where(np.arange(8) == 5, np.nan, values)},
        "infinity": {"release": np.where(np.arange(8) == 5, -np.inf, values)},
        "off the lattice": {"release": values + 1e-9},
        "float32": {"release": values.astype(np.float32)},
        "whole numbers": {"release": values.astype(np.int64)},
        "truths": {"release": values > 0},
        "folded": {"release": values.reshape(2, 4)},
        "one number": {"release": values[0]},
        "short": {"release": values[:7]},
        "empty": {"release": values[:0]},
        "long": {"release": np.concatenate([values, [0.0]])},
        "another name": {"update": values},
        "two": {"release": values, "update": values},
        "none": {},
    }.items():
        yield Case(f"tensors: {what}", (VERIFY,), words, _released(run, tensors(**arrays)))


# --- keys ---


def keys(run: Run) -> Iterator[Case]:
    names = ("state/keys/run", "state/keys/epoch-0", "state/keys/epoch-1")
    for name in names:
        whole, words = run.files[name], (name.rpartition("/")[2], "key")
        yield Case(f"{name}: missing", (RESUME,), words, without(f"run/{name}"))
        for length in (0, 1, 16, 31, 33, 64, 1000):
            yield Case(f"{name}: {length} bytes", (RESUME,), words, holding(f"run/{name}", (whole * 40)[:length]))
        contents = {
            "zeros": bytes(32),
            "text": b"0123456789abcdef0123456789abcdef",
            "backwards": whole[::-1],
            "hexadecimal": whole.hex().encode(),
            "line end": whole[:31] + b"\n",
            "another key": run.files[names[(names.index(name) + 1) % 3]],
        }
        for what, content in contents.items():
            if content != whole:
                yield Case(f"{name}: {what}", (RESUME,), words, holding(f"run/{name}", content))
        for bit in some(4, 256, seed=len(name)):
            yield Case(f"{name}: bit {bit}", (RESUME,), words, holding(f"run/{name}", flipped(whole, bit)))
        for mode in (0o644, 0o640, 0o604, 0o666, 0o620, 0o601, 0o777):
            damage = having_mode(f"run/{name}", mode)
            yield Case(f"{name}: mode {mode:o}", (VERIFY, RESUME), (name.rpartition("/")[2], "mode"), damage)
    for name in ("ledger.jsonl", "state/noise-6.safetensors"):
        for mode in (0o644, 0o666):
            yield Case(f"{name}: mode {mode:o}", (VERIFY,), (name, "mode"), having_mode(f"run/{name}", mode))


# --- other things than files ---

READ_BY: dict[str, tuple[Command, ...]] = {
    "ledger.jsonl": EVERY,
    "config.toml": (RESUME,),
    "metrics.jsonl": (VERIFY, RESUME),
    "guarantee.json": (VERIFY,),
    "strategy.safetensors": (VERIFY, LEDGER),
    "state/keys/run": (RESUME,),
    "state/keys/epoch-0": (RESUME,),
    "state/keys/epoch-1": (RESUME,),
    "state/releases/3.safetensors": (VERIFY,),
    "state/releases/7.safetensors": (VERIFY, RESUME),
    "state/checkpoint.json": (RESUME,),
    "state/checkpoint-6.safetensors": (RESUME,),
    "state/noise-6.safetensors": (RESUME,),
    "state/lock": (RESUME,),
    "model.safetensors": (VERIFY,),
}
FOLDERS: dict[str, tuple[Command, ...]] = {
    "state": (VERIFY, RESUME),
    "state/keys": (RESUME,),
    "state/releases": (VERIFY, RESUME),
}


def kinds_of_file(run: Run) -> Iterator[Case]:
    for name, commands in READ_BY.items():
        words: tuple[Word, ...] = (Path(name).name if "releases" not in name else ("releases", Path(name).name),)
        for kind in KINDS:
            # A link to the very file is as good as the file where only its content counts.
            if (name, kind) != ("config.toml", "link"):
                made = holding("run/model.safetensors", tensors_file({}, b""))
                first = (made,) if name == "model.safetensors" else ()
                yield Case(f"{name}: {kind}", commands, words, together(*first, becoming(f"run/{name}", kind)))
        if name not in ("metrics.jsonl", "state/lock"):
            yield Case(f"{name}: empty", commands, words_of_empty(name, words), holding(f"run/{name}", b""))
    for name, commands in FOLDERS.items():
        for kind in ("file", "pipe", "link", "endless", "dangling"):
            yield Case(f"{name}: {kind}", commands, (("run/" + name, "release", name),), becoming(f"run/{name}", kind))
    for kind in ("file", "pipe", "endless", "dangling"):
        yield Case(f"the run: {kind}", EVERY, ("run",), becoming("run", kind))
    for kind in KINDS:
        if kind != "link":
            yield Case(f"a config: {kind}", (PLAN, ("train", "plan.toml")), ("plan.toml",), becoming("plan.toml", kind))


def words_of_empty(name: str, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Empty settings are settings, which say too little."""
    return ("noise_multiplier",) if name == "config.toml" else words


# --- matrices ---

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
        command = (*next(bases), "--strategy", "dense", "--matrix", file)
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


# --- what a run states ---


def metrics(run: Run) -> Iterator[Case]:
    lines = run.files["metrics.jsonl"].splitlines(keepends=True)
    good = json.loads(lines[-1])
    name = "run/metrics.jsonl"

    def case(what: str, rows: list[bytes], commands: tuple[Command, ...] = (VERIFY, RESUME)) -> Case:
        return Case(what, commands, ("metrics.jsonl",), holding(name, b"".join(rows)))

    for what, line in {
        "NaN": json.dumps({**good, "epsilon": float("nan")}).encode(),
        "infinite": json.dumps({**good, "epsilon": float("inf")}).encode(),
        "1e999": lines[-1].strip().replace(b'"epsilon":', b'"epsilon":1e999,"was":'),
        "epsilon twice": lines[-1].strip().replace(b"{", b'{"epsilon": 0.1, ', 1),
        "deep": b"[" * DEEP,
        "long number": b'{"epsilon": ' + b"9" * DEEP + b"}",
        "list": b"[1, 2]",
        "null": b"null",
        "number": b"7",
        "text": b'"epsilon"',
        "empty": b"{}",
        "blank": b"",
        "torn": lines[-1][:40],
        "no UTF-8": b'{"epsilon": "\xff"}',
        "zeros": bytes(50),
        "CSV": b"7,0.5,1.0",
        "pickle": pickle.dumps(good),
    }.items():
        yield case(f"last line: {what}", [*lines[:-1], line + b"\n"])
        yield case(f"third line: {what}", [*lines[:2], line + b"\n", *lines[3:]], (RESUME,))
    wrong: dict[str, tuple[Any, ...]] = {
        "round_index": (None, True, -1, 7.5, "7", [7], {}, 8, 11, 10**30),
        "epsilon": (True, -1.0, "nan", "7", [7.0], {}, 10**400),
        "accuracy": (True, "high", [0.5], {}, "nan"),
        "loss": (True, "low", [0.5], {}, "nan"),
    }
    for key, values in wrong.items():
        # Accuracy and loss are for people: nothing was promised about them.
        commands = (VERIFY, RESUME) if key in ("round_index", "epsilon") else (RESUME,)
        for value in values:
            row = json.dumps({**good, key: value}).encode() + b"\n"
            yield case(f"{key}: {str(value)[:20]!r}", [*lines[:-1], row], commands)
    for epsilon in (None, 0.0, good["epsilon"] / 2, good["epsilon"] * 2):
        row = json.dumps({**good, "epsilon": epsilon}).encode() + b"\n"
        yield case(f"false epsilon {epsilon}", [*lines[:-1], row], (VERIFY,))
    for key in ("round_index", "epsilon"):
        row = json.dumps({k: v for k, v in good.items() if k != key}).encode() + b"\n"
        yield case(f"no {key}", [*lines[:-1], row])
        yield case(f"no {key} in the third line", [*lines[:2], row, *lines[3:]], (RESUME,))
    yield case("backwards", lines[::-1], (RESUME,))
    yield case("a line twice", [*lines, lines[-1]], (RESUME,))
    yield case("the first line twice", [lines[0], *lines], (RESUME,))
    yield case("Windows text", [b"".join(lines).decode().encode("utf-16")])


def statements(run: Run) -> Iterator[Case]:
    whole = run.files["guarantee.json"]
    good = json.loads(whole)

    def case(what: str, content: bytes) -> Case:
        return Case(what, (VERIFY,), ("guarantee.json",), holding("run/guarantee.json", content))

    for what, content in {
        "NaN": whole.replace(b'"epsilon":', b'"epsilon":NaN,"was":'),
        "Infinity": whole.replace(b'"epsilon":', b'"epsilon":Infinity,"was":'),
        "1e999": whole.replace(b'"epsilon":', b'"epsilon":1e999,"was":'),
        "epsilon twice": whole.replace(b"{", b'{"epsilon":0.1,', 1),
        "deep": b"[" * DEEP,
        "long number": b'{"epsilon":' + b"9" * DEEP + b"}",
        "list": b"[]",
        "null": b"null",
        "number": b"1.0",
        "text": b'"private"',
        "empty object": b"{}",
        "blank": b"\n",
        "no UTF-8": b"\xff" + whole,
        "UTF-16": whole.decode().encode("utf-16"),
        "zeros": bytes(len(whole)),
        "long": whole + b" " * 2**21,
        "more": whole + whole,
        "pickle": pickle.dumps(good),
    }.items():
        yield case(what, content)
    for cut in some(15, len(whole) - 1, seed=16):
        yield case(f"cut at {cut}", whole[:cut])
    for epsilon in (
        None,
        True,
        0,
        -1.0,
        0.1,
        good["epsilon"] * 0.999,
        good["epsilon"] * 1.001,
        "1.0",
        [1.0],
        {},
        10**400,
        "\x1b[31m",
    ):
        yield case(f"epsilon {str(epsilon)[:20]!r}", canonical({**good, "epsilon": epsilon}))
    yield case("no epsilon", canonical({key: value for key, value in good.items() if key != "epsilon"}))
    for key, value in {
        "delta": 1e-9,
        "rounds": 1,
        "private": False,
        "noise_multiplier": 100.0,
        "neighboring_relation": "replace-one",
        "privacy_unit": "galaxy",
        "accountant": "pld",
        "l2_sensitivity": 0.1,
        "zcdp_rho": 0.001,
        "simulation": True,
    }.items():
        yield case(f"{key}: {value}", canonical({**good, key: value}))


def model_of(head: object) -> bytes:
    """A model that says under which head of the ledger it was released."""
    header, data = opened(tensors(weight=np.ones(6), bias=np.ones(2)))
    return tensors_file({"__metadata__": {"ledger_head": head}, **header}, data)


def models(run: Run) -> Iterator[Case]:
    """A model of a run names the head that it was released under, and is whole."""
    head = json.loads(run.lines[-1])["hash"]

    def case(what: str, content: bytes) -> Case:
        return Case(what, (VERIFY,), ("model.safetensors",), holding("run/model.safetensors", content))

    for what, content in attacks(model_of(head)):
        yield case(what, content)
    for other in ("", "0" * 64, head[:-1], head.upper(), None, 5, [head], {head: head}, "\x1b[31m"):
        yield case(f"head {str(other)[:12]!r}", model_of(other))
    yield case("no metadata", tensors(weight=np.ones(6), bias=np.ones(2)))


# Of the square root of the prefix sum, in three bands.
COEFFICIENTS = np.array([1.0, 0.5, 0.375])


def strategies(run: Run) -> Iterator[Case]:
    whole, words = run.files["strategy.safetensors"], ("strategy",)
    two = itertools.cycle([(VERIFY,), (LEDGER,)])
    name = "run/strategy.safetensors"
    for bit in some(50, 8 * len(whole), seed=18):
        yield Case(f"bit {bit}", next(two), words, holding(name, flipped(whole, bit)))
    for what, content in attacks(whole):
        yield Case(what, next(two), words, holding(name, content))
    c = COEFFICIENTS
    for what, arrays in {
        "short": {"coefficients": c[:2]},
        "long": {"coefficients": np.append(c, 0.0)},
        "folded": {"coefficients": c[None]},
        "a column": {"coefficients": c[:, None]},
        "empty": {"coefficients": c[:0]},
        "another order": {"coefficients": c[::-1].copy()},
        "NaN": {"coefficients": np.array([1.0, np.nan, 0.375])},
        "infinity": {"coefficients": np.array([np.inf, 0.5, 0.375])},
        "zero": {"coefficients": np.array([0.0, 0.5, 0.375])},
        "whole numbers": {"coefficients": c.astype(np.int64)},
        "another number": {"coefficients": np.array([1.0, 0.5, np.nextafter(0.375, 1)])},
        "another name": {"C": c},
        "none": {},
    }.items():
        yield Case(f"coefficients: {what}", (VERIFY, LEDGER), words, holding(name, tensors(**arrays)))
    yield Case("missing", (VERIFY, LEDGER), words, without(name))


# --- MNIST ---

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
    command = ("plan", "plan.toml", "--set", "data.name=mnist", "--set", "data.path=mnist.npz")

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
    command = ("plan", "plan.toml", "--set", "data.name=mnist", "--set", "data.path=data")
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


def kinds_of_matrix(run: Run) -> Iterator[Case]:
    """Something else than a file where a matrix or data are named by a setting."""
    dense = ("--set", "privacy.strategy=dense", "--set", "privacy.matrix=C.npy")
    data = ("--set", "data.name=mnist", "--set", "data.path=mnist.npz")
    for kind in KINDS:
        if kind != "link":
            damage = together(holding("C.npy", npy(C)), becoming("C.npy", kind))
            commands = ((*NOISY, "--strategy", "dense", "--matrix", "C.npy"), (*PLAN, *dense))
            yield Case(f"matrix: {kind}", commands, ("C.npy",), damage)
            damage = together(holding("mnist.npz", b""), becoming("mnist.npz", kind))
            yield Case(f"data: {kind}", (("plan", "plan.toml", *data),), ("mnist.npz",), damage)


# --- names ---

# What a terminal, a markup or a format would take for something else, and what of it any message can show.
NASTY = {
    "\x1b[31mred": "red",
    "\x1b]0;title\x07": "title",
    "[/red]": "/red]",
    "[bold]loud[/bold]": "loud",
    "[link=x]y": "y",
    "two\nlines": "lines",
    "tab\there": "here",
    "bell\a": "bell",
    "back\b\b\b\bspace": "space",
    "re\rturn": "turn",
    "\x9b31mred": "red",
    "\u202egnp.exe": "gnp",
    "zero\u200bwidth": "width",
    "line\u2028end": "end",
    "%s{}{0}%n": "%n",
    "half\udcff": "half",
    "x" * 250: "xxx",
}
# What no file can be called.
IMPOSSIBLE = {"nul\0byte": "byte", "y" * 300: "yyy", "z/" * 3000: "z/", "": ""}


def names(run: Run) -> Iterator[Case]:
    for nasty, word in (NASTY | IMPOSSIBLE).items():
        shown_as = repr(nasty[:20])
        if nasty:
            commands = (("plan", nasty), ("train", nasty))
            yield Case(f"config {shown_as}", commands, (word,), nothing)
            commands = tuple((command, nasty) for command in ("resume", "verify", "ledger", "close"))
            yield Case(f"run {shown_as}", commands, (word,), nothing)
            data = ("plan", "config.toml", "--set", "data.name=mnist", "--set", f"data.path={nasty}")
            matrix = (*NOISY, "--strategy", "dense", "--matrix", nasty)
            commands = (data, matrix) if "\n" not in nasty and "\r" not in nasty else (matrix,)
            yield Case(f"data and matrix {shown_as}", commands, (word,), holding("config.toml", CONFIG.encode()))
        yield Case(f"strategy {shown_as}", ((*NOISY, "--strategy", nasty),), ("strategy", word), nothing)
        yield Case(f"command {shown_as}", ((nasty, "x"),), (word,) if nasty else (), nothing)
        yield Case(f"--set {shown_as}", ((*PLAN, "--set", nasty),), ("--set", word), nothing)
        key = json.dumps(nasty.replace("\udcff", "\ufffe"))
        damage = holding("bad.toml", f"[training]\n{key} = 1\n".encode())
        yield Case(f"key {shown_as}", (("plan", "bad.toml"),), ("training", word), damage)
        damage = holding("bad.toml", f"[{key}]\n".encode())
        yield Case(f"section {shown_as}", (("plan", "bad.toml"),), (word,), damage)
    for path in ("../nowhere", "run/../nowhere", "/proc/self/nowhere", "~nobody/nowhere", "plan.toml/nowhere", "/", "."):
        commands = tuple((command, path) for command in ("resume", "verify", "ledger", "close"))
        yield Case(f"no run at {path}", commands, (path, "is no run"), nothing)
    for nasty, word in NASTY.items():
        shown_as = repr(nasty[:20])
        train = ("train", "plan.toml", "--allow-import", "--out", nasty)
        yield Case(f"a file called {shown_as}", (train,), (word, "exists"), holding(nasty, b"years of work"))
        commands = (("verify", nasty), ("resume", nasty, "--allow-import"), ("ledger", nasty))
        moved = _moved(nasty, "ledger.jsonl", b"{}\n")
        yield Case(f"a run called {shown_as} with a bad ledger", commands, ("ledger.jsonl", word), moved)
        resume = (("resume", nasty, "--allow-import"),)
        moved = _moved(nasty, "state/checkpoint.json", b"[]")
        yield Case(f"a run called {shown_as} with a bad checkpoint", resume, ("checkpoint.json", word), moved)
        verify = (("verify", nasty),)
        moved = _moved(nasty, "guarantee.json", b"[]")
        yield Case(f"a run called {shown_as} with a bad statement", verify, ("guarantee.json",), moved)
    for nasty, word in IMPOSSIBLE.items():
        if nasty:
            train = ("train", "plan.toml", "--allow-import", "--out", nasty)
            yield Case(f"--out {nasty[:20]!r}", (train,), (word,), nothing)


def _moved(name: str, file: str, content: bytes) -> Damage:
    def damage() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path("run").rename(name)
        Path(name, file).write_bytes(content)

    return damage


def whole(run: Run) -> Iterator[Case]:
    """What the cases are made from, made by the same hands: it is taken."""
    head = json.loads(run.lines[-1])["hash"]
    epoch = {**run.records()[12], "epoch": 2, "first_row": 8, "key": "0" * 64}
    begin = {**run.records()[2], "round": 8, "epoch": 2, "clients": []}
    later = forged([*run.bodies, canonical(epoch), canonical(begin), canonical({"kind": "burn", "round": 8})])
    release = np.frombuffer(opened(run.files["state/releases/7.safetensors"])[1])
    checkpoint, noise = "checkpoint-6.safetensors", "noise-6.safetensors"
    model = tensors(model=np.arange(8, dtype=np.float32))
    manifest = json.dumps(json.loads(run.files["state/checkpoint.json"]), indent=1).encode()
    dense = ("--strategy", "dense", "--matrix", "C")
    yield Case("a config", (PLAN,), (), nothing)
    yield Case("a run", EVERY, (), nothing)
    yield Case("its head", (("verify", "run", "--head", head.upper()), (*RESUME, "--head", head)), (), nothing)
    yield Case("a ledger", EVERY, (), forged(run.bodies))
    yield Case("later records", (VERIFY, LEDGER), (), later)
    yield Case("a manifest", (RESUME,), (), holding("run/state/checkpoint.json", manifest))
    yield Case("a checkpoint", (RESUME,), (), _with_digest(run, checkpoint, model))
    yield Case("rows of noise", (RESUME,), (), _with_digest(run, noise, tensors(**noise_rows())))
    yield Case("a release", (VERIFY, RESUME), (), _released(run, tensors(release=release)))
    yield Case("a model", (VERIFY,), (), holding("run/model.safetensors", model_of(head)))
    yield Case("a strategy", (VERIFY,), (), holding("run/strategy.safetensors", tensors(coefficients=COEFFICIENTS)))
    for name, content in {"npy": npy(C), "Fortran": npy(np.asfortranarray(C)), "proto": proto(2, C.shape, C.tobytes())}.items():
        yield Case(f"a matrix as {name}", ((*NOISY, *dense), (*CALIBRATE, *dense)), (), holding("C", content))


FAMILIES: dict[str, Family] = {
    "numbers by flag": numbers_by_flag,
    "numbers in a file": numbers_in_a_file,
    "words": words_that_are_none,
    "misspelt names": misspelt_names,
    "config files": config_files,
    "configs of runs": configs_of_runs,
    "flags": flags,
    "kept heads": kept_heads,
    "ledger bits": ledger_bits,
    "ledger lines": ledger_lines,
    "ledgers rolled back": rolled_back,
    "forged types": forged_types,
    "forged JSON": forged_json,
    "forged order": forged_order,
    "forged promises": forged_promises,
    "manifests": manifests,
    "checkpoint bits": checkpoint_bits,
    "checkpoint formats": checkpoint_formats,
    "checkpoint tensors": checkpoint_tensors,
    "releases": releases,
    "release formats": release_formats,
    "keys": keys,
    "kinds of file": kinds_of_file,
    "matrices": matrices,
    "kinds of matrix": kinds_of_matrix,
    "metrics": metrics,
    "statements": statements,
    "models": models,
    "strategies": strategies,
    "MNIST": mnist,
    "names": names,
}
