"""What a run states of itself, and says wrongly: metrics, the guarantee, the model and the strategy."""

import hashlib
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from malformed.base import LEDGER, RESUME, VERIFY, Case, Command, Run
from malformed.contents import DEEP, attacks, canonical, flipped, opened, some, tensors, tensors_file
from malformed.damages import Damage, forged, holding, together, without


def metrics(run: Run) -> Iterator[Case]:
    lines = run.files["metrics.jsonl"].splitlines(keepends=True)
    good = json.loads(lines[-1])
    name = "run/metrics.jsonl"

    def case(what: str, rows: list[bytes], commands: tuple[Command, ...] = (VERIFY, RESUME)) -> Case:
        return Case(what, commands, ("metrics.jsonl",), holding(name, b"".join(rows)))

    # Zeros are what a loss of power leaves of a line: no row, and no fault.
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
        "CSV": b"7,0.5,1.0",
        "another line end": b"7\r{}",
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
    yield case("Windows text", [b"".join(lines).decode().encode("utf-8-sig")])


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
        "accountant": "rdp",
        "l2_sensitivity": 0.1,
        "zcdp_rho": 0.001,
        "simulation": True,
    }.items():
        yield case(f"{key}: {value}", canonical({**good, key: value}))


def model_of(head: object) -> bytes:
    """A model that says under which head of the ledger it was released."""
    header, data = opened(tensors(weight=np.ones(6), bias=np.ones(2)))
    return tensors_file({"__metadata__": {"ledger_head": head}, **header}, data)


def bound_model(run: Run, content: bytes) -> Damage:
    """A model, and a ledger that binds it."""
    record = {"kind": "files", "files": {"model.safetensors": hashlib.sha256(content).hexdigest()}}
    return together(forged([*run.bodies, canonical(record)]), holding("run/model.safetensors", content))


def models(run: Run) -> Iterator[Case]:
    """A model of a run names the head that it was released under, and is whole."""
    head = json.loads(run.lines[-1])["hash"]

    def case(what: str, content: bytes) -> Case:
        return Case(what, (VERIFY,), ("model.safetensors",), bound_model(run, content))

    for what, content in attacks(model_of(head)):
        yield case(what, content)
    for other in ("", "0" * 64, head[:-1], head.upper(), None, 5, [head], {head: head}, "\x1b[31m"):
        yield case(f"head {str(other)[:12]!r} of {len(str(other))}", model_of(other))
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
