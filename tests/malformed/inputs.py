"""What a user types: settings, their files, flags of every command, names, and files that a setting or a flag names."""

import dataclasses
import datetime
import itertools
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import typer.main

from hubbub.cli.app import app
from hubbub.experiment.config import Config
from malformed import laws, place
from malformed.contents import C, archive, field, header_of, npy, npy_of, proto, tensors, varint
from malformed.place import CALIBRATE, NOISY, PLAN, RESUME, Case, Damage, Run, Word, becoming, holding, nothing, together

# Settings that are looked at only where another one is made.
NEEDS = {
    "secagg": "secagg=paillier",
    "privacy.target_quantile": "privacy.clipping=adaptive",
    "privacy.clip_norm_learning_rate": "privacy.clipping=adaptive",
    "privacy.clip_count_stddev": "privacy.clipping=adaptive",
    "heads": 'heads.command=["true"]',
}
NO_WHOLE = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 30, "false", "[3]", "{ a = 1 }", '"7"', "3.0", "1979-05-27T07:32:00Z")
NO_REAL = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 400, "1e13", "false", "[0.5]", "{ a = 1 }", '"0.5"', "07:32:00", "0.5.5")
NO_TEXT = ("nan", "3", "true", "[1]", "1979-05-27", '"\\u001b[31mred"', "Adaptive", "exmaple", "cpu:0", "float16", "batched--1")
NO_SWITCH = ("nan", "1", "0", "yes", "[true]", '"true"')
NO_LIST = ("1", "true", "[1]", "[[]]", "[nan]", "{ a = 1 }", '["run", 3]', "1979-05-27")
# What names a file, code or an address may be any text.
ANY_TEXT = "privacy.strategy privacy.matrix data.path data.name model.name secagg.keys heads.url heads.key".split()


def every_key() -> Iterator[tuple[str, Any]]:
    """Every setting and the type of its value."""
    for section in dataclasses.fields(Config):
        kind = type(getattr(Config(), section.name))
        for key, hint in typing.get_type_hints(kind).items():
            parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
            yield f"{section.name}.{key}", next(part for part in parts if part is not type(None))


def parsed(text: str) -> Any:
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
    return "too large" if len(text) > 100 else (repr(value), repr(float(value)))


def plan_with(*settings: str) -> tuple[str, ...]:
    return (*PLAN, *(part for setting in settings for part in ("--set", setting)))


def settings(run: Run) -> Iterator[Case]:
    """Each setting with each value that it cannot have: on the command line, and in a file."""
    values = {int: NO_WHOLE, float: NO_REAL, str: NO_TEXT, bool: NO_SWITCH}
    for key, kind in every_key():
        for text in values.get(kind, NO_LIST):
            # More participations or epochs than there are rounds are promised in vain, but they are a promise.
            in_vain = key.endswith(("participations", "epochs", "rounds_per_epoch")) and text.startswith("1000")
            if in_vain or (key in ANY_TEXT and isinstance(parsed(text), str)):
                continue
            base = [need for start, need in NEEDS.items() if key.startswith(start)]
            # Whoever joins settings names them without their section.
            words = ((key, f"{key.partition('.')[2]} = "), shown(text)) if kind in values else (key,)
            yield Case(f"{key}={text[:40]}", (plan_with(*base, f"{key}={text}"),), words, nothing)
            section, _, name = key.partition(".")
            # So rare a client may come to the one round that there is by default.
            if isinstance(parsed(text), str) == text.startswith('"') and (name, text[:4]) != ("min_separation", "1000"):
                line = f"[{section}]\n{name} = {text}\n".encode()
                yield Case(f"{key} = {text[:40]}", (("plan", "bad.toml"),), words, holding("bad.toml", line))


def commands(group: click.Group | None = None, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the program, with the words that call it."""
    program = group or typer.main.get_command(app)
    assert isinstance(program, click.Group)
    for name, command in program.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


# Flags.

# The shortest line of a command that is right.
RIGHT: dict[str, tuple[str, ...]] = {
    "account": NOISY,
    "calibrate": CALIBRATE,
    "gaussian": ("gaussian", "--epsilon", "2", "--delta", "1e-5"),
    "factorize": ("factorize", "banded", "--rounds", "6"),
    "compare": ("compare", "--rounds", "6"),
    "paillier keygen": ("paillier", "keygen", "-o", "keys"),
    "paillier shares": ("paillier", "shares", "-o", "keys", "--bits", "2048", "--holders", "3", "--threshold", "2"),
    "paillier bench": ("paillier", "bench", "-o", "b"),
    "train": ("train", "plan.toml", "--allow-import"),
    "resume": RESUME,
    "extend": ("extend", "run", "--rounds", "2", "--out", "more", "--allow-import"),
    "sweep": ("sweep", "plan.toml", "--grid", "training.rounds=6,7", "--allow-import"),
    "audit": ("audit", "plan.toml", "--allow-import"),
}
# Flags that mean nothing without others.
RANDOM = ("--sampling-probability", "0.5")
WITH: dict[str, tuple[str, ...]] = {
    "--bands": ("--strategy", "banded-toeplitz"),
    "--buffers": ("--strategy", "blt"),
    "--column-norm-squared": ("--strategy", "banded", "--bands", "2"),
    "--max-participations": ("--min-separation", "2"),
    "--epochs": ("--rounds-per-epoch", "2"),
    "--cohort-size": ("--population", "9"),
    "--population": ("--cohort-size", "2"),
    "--max-cohort-size": (*RANDOM, "--population", "9"),
    "--cycle-length": RANDOM,
}
OPTIMIZED = dict.fromkeys(("--bands", "--max-participations"), ("--min-separation", "2"))
OPTIMIZED |= {"--buffers": (), "--epochs": ("--rounds-per-epoch", "2")}
ODD = ("-inf", "1e999", "0,5", "½", "ten", " ", "\x1b[31m3", "1e", "NaN(1)", "[3]", "3;4", "1\u202e2", "None", "--3")
NO_WHOLE_FLAG = (*ODD, "-7", "0x10", "1.0", "9" * 5000, "1e-3", "1.5e0", "infinity")
NO_REAL_FLAG = (*ODD, "-0.5", "0x1p3", "1d5", "9" * 5000, "1e-400", "infinity", "-1e-5")


def given(flag: str, text: str) -> tuple[Word, ...]:
    """How a message may name a flag and what it got."""
    values = [repr(text[:40]), text[:40]]
    for kind in (int, float):
        try:
            values.append(repr(kind(text)))
        except ValueError:
            continue
    return (flag, flag[2:].replace("-", "_"), flag[2:].split("-")[-1]), tuple(values)


def flags(run: Run) -> Iterator[Case]:
    """Each flag of a number with each value that it cannot have."""
    for words, command in commands():
        line = RIGHT.get(" ".join(words))
        for option in command.params if line else ():
            flag, kind = max(option.opts, key=len), option.type.name
            needs = (OPTIMIZED if words[0] in ("factorize", "compare") else WITH).get(flag, ())
            base = line
            if flag == "--buffers" and words[0] == "factorize":
                base = ("factorize", "blt", "--rounds", "6")
            if flag == "--clip-noise-multiplier":
                base = place.ACCOUNT
            for text in {"whole": NO_WHOLE_FLAG, "integer": NO_WHOLE_FLAG, "number": NO_REAL_FLAG}.get(kind, ()):
                command_line = (*base, *needs, flag, text)
                yield Case(f"{' '.join(words)} {flag} {text[:40]!r}", (command_line,), given(flag, text), nothing)


def heads(run: Run) -> Iterator[Case]:
    """Kept heads that are none, or another ledger's."""
    head = json.loads(run.lines[-1])["hash"]
    odd = ("", " ", "0", "0" * 64, head[:-1], head + "0", head[::-1], f"sha256:{head}", " " + head, "\x1b[31m" + head, "é" * 64)
    for text in (*odd, head[:-1] + "\u0430", "9" * 5000, "../" + head, "[/red]", "None", head + "\n", "\0", "\udcff"):
        lines = (("verify", "run", "--head", text), (*RESUME, "--head", text))
        said = "ledger.jsonl" if re.fullmatch("[0-9a-f]{64}", text) else "64 hexadecimal digits"
        yield Case(repr(text[:100]), lines, ("head", said), nothing)


# Names.

# What a terminal, a markup or a format would take for something else, and what of it any message can show.
NASTY = {
    "\x1b[31mred": "red", "\x1b]0;title\x07": "title", "[/red]": "/red]", "[link=x]y": "y", "two\nlines": "lines",
    "tab\there": "here", "bell\a": "bell", "back\b\b\b\bspace": "space", "re\rturn": "turn", "\x9b31mred": "red",
    "\u202egnp.exe": "gnp", "zero\u200bwidth": "width", "line\u2028end": "end", "%s{}{0}%n": "%n", "half\udcff": "half",
    "x" * 250: "xxx",
}  # fmt: skip
# What no file can be called.
IMPOSSIBLE = {"nul\0byte": "byte", "y" * 300: "yyy", "z/" * 3000: "z/"}


def names(run: Run) -> Iterator[Case]:
    """Names of files, runs, settings and strategies that are not shown as they are."""
    for nasty, word in (NASTY | IMPOSSIBLE).items():
        as_text = repr(nasty[:20])
        paths = tuple((command, nasty) for command in ("plan", "train", "resume", "verify", "ledger", "close"))
        yield Case(f"path {as_text}", paths, (word,), nothing)
        lines = ((*NOISY, "--mechanism", nasty), (*NOISY, "--strategy", nasty), (nasty, "x"), (*PLAN, "--set", nasty))
        yield Case(f"word {as_text}", lines, (word,), nothing)
        key = json.dumps(nasty.replace("\udcff", "\ufffe"))
        for what, text in {"key": f"[training]\n{key} = 1\n", "section": f"[{key}]\n"}.items():
            yield Case(f"{what} {as_text}", (("plan", "bad.toml"),), (word,), holding("bad.toml", text.encode()))
    for nasty, word in NASTY.items():
        as_text = repr(nasty[:20])
        train = ("train", "plan.toml", "--allow-import", "--out", nasty)
        yield Case(f"a file called {as_text}", (train,), (word, "exists"), holding(nasty, b"years of work"))
        lines = (("verify", nasty), ("resume", nasty, "--allow-import"), ("ledger", nasty))
        yield Case(f"a run called {as_text} with a bad ledger", lines, ("ledger.jsonl", word), moved(nasty, "ledger.jsonl"))
        resume, damage = (("resume", nasty, "--allow-import"),), moved(nasty, "state/checkpoint.json")
        yield Case(f"a run called {as_text} with a bad state", resume, ("checkpoint.json", word), damage)
    for path in ("../nowhere", "run/../nowhere", "/proc/self/nowhere", "~nobody/nowhere", "plan.toml/nowhere", "/", "."):
        lines = tuple((command, path) for command in ("resume", "verify", "ledger", "close"))
        yield Case(f"no run at {path}", lines, (path, "is no run"), nothing)


def moved(name: str, file: str) -> Damage:
    def damage() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path("run").rename(name)
        Path(name, file).write_bytes(b"[]\n")

    return damage


# Files.


def protos() -> laws.Damaged:
    """TensorProtos that are none, or hold no matrix."""
    data = C.tobytes()
    for dtype in (0, 3, 9, 14, 19, 22, 101, 2**31, 2**63):
        yield f"type {dtype}", proto(dtype, C.shape, data)
    huge = ((10**6, 10**6), (2**32, 2**32), (2**63, 2**63), (2**64 - 1, 6))
    for shape in (*huge, (36, 0), (6, 7), (6,), (), (1,) * 100 + (36,), (6, 6, 2), (2**62,) * 60_000):
        yield f"shape {str(shape)[:30]} of {len(shape)}", proto(2, shape, data)
    yield from {
        "endless number": b"\x08" + b"\xff" * 20,
        "no end of a number": b"\x08\xff",
        "a length beyond the end": b"\x22" + varint(10**12) + data,
        "a length of 2^63": b"\x22" + varint(2**63) + data,
        "field 0": field(0, data),
        "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
        "safetensors": tensors(C=C),
        "archive": archive(C=npy(C)),
        "bomb": archive(C=npy_of(header_of("'<f8'", "(1000, 1000)"), bytes(8 * 10**6))),
        **{f"wire type {wire}": bytes([1 << 3 | wire]) + data for wire in (1, 3, 4, 5, 6, 7)},
    }.items()
    yield from laws.of_bytes(proto(2, C.shape, data))


def matrices(run: Run) -> Iterator[Case]:
    """Files of matrices and of learning rates that are no such files."""
    rates = ("factorize", "banded", "--rounds", "6", "--learning-rates")
    for file, damages in {
        "C.npy": laws.of_npy(C.tobytes(), "'<f8'", "(6, 6)"),
        "C.pb": protos(),
        "rates.npy": laws.of_npy(np.ones(6).tobytes(), "'<f8'", "(6,)"),
    }.items():
        for what, content in damages:
            lines = ((*rates, file),) if "rates" in file else ((*NOISY, "--mechanism", file), (*CALIBRATE, "--mechanism", file))
            yield Case(f"{file}: {what}", lines, (file,), holding(file, content))
    for dtype in ("float16", "int64", "bool", "complex128", "S8", "U8", "object"):
        for file, shape in (("C.npy", (6, 6)), ("rates.npy", (6,))):
            line = (*rates, file) if "rates" in file else (*NOISY, "--mechanism", file)
            yield Case(f"{file}: {dtype}", (line,), (file,), holding(file, npy(np.ones(shape).astype(dtype))))
    for at, odd in itertools.product((0, 3, 5), (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300)):
        content = npy(np.where(np.arange(6) == at, odd, 1.0))
        yield Case(f"{odd} at {at}", ((*rates, "rates.npy"),), ("rates.npy", f"[{at}]"), holding("rates.npy", content))
    for kind in place.KINDS:
        if kind != "link":
            plan = plan_with("privacy.strategy=dense", "privacy.matrix=C.npy")
            lines = ((*NOISY, "--mechanism", "C.npy"), plan, (*rates, "C.npy"))
            yield Case(f"matrix: {kind}", lines, ("C.npy",), together(holding("C.npy", npy(C)), becoming("C.npy", kind)))


DATA: dict[str, dict[str, tuple[str, str]]] = {
    "mnist": {"x_train": ("'|u1'", "(60000, 28, 28)")},
    "fashion-mnist": {"x_train": ("'|u1'", "(60000, 28, 28)")},
    "cifar10": {
        "blob": ("'|u1'", "(99,)"), "offsets": ("'<i8'", "(60001,)"), "labels": ("'|u1'", "(60000,)"),
        "split": ("'|u1'", "(60000,)"),
    },
    "shakespeare": {},
}  # fmt: skip


def data_sets(run: Run) -> Iterator[Case]:
    for name, members in DATA.items():
        line = (*PLAN, "--measure", "--set", f"data.name={name}", "--set", "data.path=data.bin")

        def case(what: str, damage: Damage, line: tuple[str, ...] = line, name: str = name) -> Case:
            return Case(f"{name}: {what}", (line,), ("data.bin",), damage)

        sound = {member: npy_of(header_of(*form), bytes(99)) for member, form in members.items()}
        whole = archive(**sound) if members else b"First Citizen:\nBefore we proceed any further, hear me speak.\n"
        for what, content in laws.of_bytes(whole, flips=20, cuts=20):
            yield case(what, holding("data.bin", content))
        for member, form in members.items():
            for what, odd in laws.of_npy(bytes(99), *form):
                yield case(f"{member}: {what}", holding("data.bin", archive(**{**sound, member: odd})))
            others = {key: odd for key, odd in sound.items() if key != member}
            yield case(f"no {member}", holding("data.bin", archive(**others)))
        for kind in place.KINDS:
            if kind != "link":
                yield case(kind, together(holding("data.bin", b"x"), becoming("data.bin", kind)))
