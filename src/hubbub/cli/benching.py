"""``hubbub paillier bench``: what encryption, arithmetic and decryption of one number cost, ours beside phe's."""

import csv
import importlib
import importlib.util
import io
import itertools
import json
import operator
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np

from hubbub import __version__, files
from hubbub._checks import Array, integer, shown
from hubbub.cli.output import console, print_json, say
from hubbub.errors import ConfigError
from hubbub.report.operation_times import draw_operation_times
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.primes import prime_pair

__all__ = ["bench", "measured"]

OPERATIONS, STAGES = ("add", "add a constant", "multiply by a constant"), ("encrypt", "decrypt", "total")
_LEAST_BITS, _MOST_BITS = 256, 4096
# Of a key, beside the operand: a sign, the factor of a product and phe's room for overflows.
_ROOM = 24
_REPEATS, _SHORTEST = 9, 2e-4
# Numbers in one call: the way that arrays are encrypted. phe takes them one by one.
_TOGETHER = 16
# What a table of powers is built for, ahead of what is timed.
_ENCRYPTIONS = 10_000


@dataclass(frozen=True)
class Subject:
    """One implementation: whole numbers in, ciphertexts of its own, whole numbers out.

    Args:
        name: Of the implementation.
        together: How many numbers one call takes.
        encrypt: Of so many numbers.
        apply: An operator on ciphertexts of so many numbers, and either as many more or one constant.
        decrypt: Of so many ciphertexts.
    """

    name: str
    together: int
    encrypt: Callable[[list[int]], Any]
    apply: Callable[[Callable[[Any, Any], Any], Any, Any], Any]
    decrypt: Callable[[Any], list[int]]


def bench(folder: Path, bits: int, sizes: str | None, *, as_json: bool) -> None:
    """Measure with fresh keys that are thrown away, and write ``bench.png``, ``bench.csv`` and ``bench.json``.

    Raises:
        ValueError: A number out of range.
        ConfigError: Sizes that are no list of numbers.
    """
    key_bits = integer("bits", bits, at_least=_LEAST_BITS, at_most=_MOST_BITS)
    if key_bits % 2:
        raise ValueError(f"bits = {key_bits}: must be even, for two primes of one length")
    wanted = _sizes(sizes, key_bits)
    files.make_folder(folder)
    if not as_json:
        say(console(), "Measuring with keys that are thrown away: about half a minute at 1024 bits, longer at more")
    subjects = _subjects(key_bits)
    seconds = measured(subjects, wanted, key_bits)
    rows = list(_rows(seconds, wanted))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    about = {
        "bits": key_bits,
        "hubbub": __version__,
        "gmpy2": gmpy2.version(),
        "gmp": gmpy2.mp_version(),
        "phe": _phe_version(),
    }
    files.write_atomic(folder / "bench.csv", text.getvalue().encode(), mode=0o644)
    files.write_atomic(folder / "bench.json", json.dumps({**about, "times": rows}, indent=1).encode() + b"\n", mode=0o644)
    files.write_atomic(folder / "bench.png", _picture(seconds, wanted, key_bits), mode=0o644)
    if as_json:
        print_json({**about, "times": rows, "folder": str(folder)})
    else:
        _print(seconds, folder, key_bits)


def measured(subjects: Sequence[Subject], sizes: Sequence[int], key_bits: int) -> dict[tuple[str, str], dict[str, Array]]:
    """Seconds of CPU a number by stage and operation, then by implementation, ``(sizes,)``: the least of several repetitions.

    Implementations and sizes take turns, so that a busy moment of the machine spoils none. An addition takes two encryptions.

    Raises:
        RuntimeError: A result was wrong.
    """
    times = {
        (stage, operation): {subject.name: np.full(len(sizes), np.inf) for subject in subjects}
        for stage in STAGES
        for operation in OPERATIONS
    }
    turns = itertools.product(range(_REPEATS), enumerate(sizes), OPERATIONS, subjects)
    for _, (place, size), operation, subject in turns:
        for stage, seconds in zip(STAGES, _once(subject, operation, size, key_bits), strict=True):
            curve = times[stage, operation][subject.name]
            curve[place] = min(curve[place], seconds)
    return times


def _once(subject: Subject, operation: str, size: int, key_bits: int) -> tuple[float, float, float]:
    """Seconds a number of encryption, of decryption, and of both with the operation between them."""
    # A product must fit.
    length = min(size, key_bits - 3 - size) if operation == OPERATIONS[2] else size
    numbers, constant = [_number(length) for _ in range(subject.together)], _number(size)
    encrypting, encrypted = _timed(lambda: subject.encrypt(numbers))
    operand: Any = constant
    if operation == OPERATIONS[0]:
        more, operand = _timed(lambda: subject.encrypt([constant] * subject.together))
        encrypting += more
    symbol = operator.mul if operation == OPERATIONS[2] else operator.add
    operating, result = _timed(lambda: subject.apply(symbol, encrypted, operand))
    decrypting, answers = _timed(lambda: subject.decrypt(result))
    if answers != [symbol(number, constant) for number in numbers]:
        raise RuntimeError(f"{subject.name}: {operation} of numbers of {size} bits came out wrong")
    stages = encrypting, decrypting, encrypting + operating + decrypting
    return stages[0] / subject.together, stages[1] / subject.together, stages[2] / subject.together


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, of as many as a clock can tell, and what it gives."""
    count, begin = 0, time.process_time()
    while True:
        result = action()
        count += 1
        spent = time.process_time() - begin
        if spent >= _SHORTEST:
            return spent / count, result


def _number(bits: int) -> int:
    """Of exactly so many bits."""
    return secrets.randbits(bits) | (1 << (bits - 1))


def _subjects(key_bits: int) -> list[Subject]:
    p, q = prime_pair(key_bits)
    private = PrivateKey.from_primes(p, q)
    public = private.public_key
    public.prepare(_ENCRYPTIONS)
    found = [Subject("hubbub", _TOGETHER, public.encrypt, lambda symbol, a, b: symbol(a, b), private.decrypt)]
    if _phe_version() is not None:
        phe = importlib.import_module("phe")
        theirs = phe.PaillierPublicKey(p * q)
        opened = phe.PaillierPrivateKey(theirs, p, q)
        found.append(
            Subject(
                "phe",
                2,
                lambda numbers: [theirs.encrypt(number) for number in numbers],
                lambda symbol, a, b: [symbol(x, y) for x, y in zip(a, b if isinstance(b, list) else [b] * len(a), strict=True)],
                lambda encrypted: [opened.decrypt(x) for x in encrypted],
            )
        )
    return found


def _phe_version() -> str | None:
    if importlib.util.find_spec("phe") is None:
        return None
    return str(importlib.import_module("phe").__version__)


def _sizes(text: str | None, key_bits: int) -> list[int]:
    most = key_bits - _ROOM
    if text is None:
        return [size for size in (10, *range(50, 4096, 50)) if size <= most]
    try:
        asked = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--sizes {shown(text)}: must be whole numbers with commas between them, such as 10,100,1000"
        ) from None
    return sorted({integer("--sizes", size, at_least=2, at_most=most) for size in asked})


def _rows(seconds: Mapping[tuple[str, str], Mapping[str, Array]], sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for (stage, operation), curves in seconds.items():
        for name, curve in curves.items():
            for size, value in zip(sizes, curve.tolist(), strict=True):
                yield {"implementation": name, "operation": operation, "stage": stage, "operand_bits": size, "seconds": value}


def _picture(seconds: Mapping[tuple[str, str], Mapping[str, Array]], sizes: Sequence[int], key_bits: int) -> bytes:
    alone = "" if _phe_version() is not None else "; phe is not installed"
    subtitle = (
        f"a number, with a key of {key_bits} bits: CPU time, the least of {_REPEATS}; ours {_TOGETHER} in a call, none packed; "
        f"an addition encrypts two{alone}"
    )
    return draw_operation_times("Paillier: time over the length of the operand", subtitle, sizes, seconds)


def _print(seconds: Mapping[tuple[str, str], Mapping[str, Array]], folder: Path, key_bits: int) -> None:
    screen = console()
    say(screen, f"A key of {key_bits} bits, one number in a ciphertext; milliseconds of CPU a number, median over the sizes:")
    for (stage, operation), curves in seconds.items():
        medians = {name: 1e3 * float(np.median(curve)) for name, curve in curves.items()}
        words = ", ".join(f"{name} {value:.4g}" for name, value in medians.items())
        ratio = f"  (phe takes {medians['phe'] / medians['hubbub']:.3g} times as long)" if "phe" in medians else ""
        say(screen, f"  {stage:8} {operation:23} {words}{ratio}")
    if _phe_version() is None:
        say(screen, "phe is not installed, so ours stand alone: pip install phe to see both side by side.")
    say(screen, "Packing puts up to a hundred and more numbers in one ciphertext, which is not shown here.")
    say(screen, f"Wrote {folder / 'bench.png'}, bench.csv and bench.json; the keys are gone.")
