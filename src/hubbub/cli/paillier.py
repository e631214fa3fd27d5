"""``hubbub paillier``: keys and shares as files, and what encryption, arithmetic and decryption cost, ours and phe's."""

import csv
import importlib
import importlib.util
import io
import itertools
import json
import operator
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from hubbub._util import __version__, files
from hubbub._util.checks import Array, integer, shown
from hubbub.cli.output import console, print_json, say
from hubbub.errors import ConfigError, KeyFileError
from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.primes import expected_candidates, prime_pair

__all__ = ["bench", "keygen", "measured", "shares"]


def keygen(folder: Path, bits: int, *, as_json: bool) -> None:
    """Write a new private key and its public key.

    Raises:
        ValueError: Too few bits.
        KeyFileError: A file is there already, or cannot be written.
    """
    _require_free(folder, [key_files.PUBLIC, key_files.PRIVATE])
    private = paillier.generate(bits)
    public = private.public_key
    _make(folder)
    key_files.write_private(folder / key_files.PRIVATE, private)
    key_files.write_public(folder / key_files.PUBLIC, public)
    if as_json:
        paths = {"public_key": str(folder / key_files.PUBLIC), "private_key": str(folder / key_files.PRIVATE)}
        print_json({"key_id": public.key_id, "bits": public.bits, **paths})
        return
    screen = console()
    say(screen, f"Wrote {folder / key_files.PRIVATE}")
    say(
        screen,
        "  Secret: whoever has it reads every contribution, not only sums. For one owner who is not the server and never "
        "sees single contributions; 'hubbub paillier shares' needs no such person.",
    )
    say(screen, f"Wrote {folder / key_files.PUBLIC}")
    say(
        screen,
        f"  Public: for clients and the server. Its key id is {public.key_id}; tell it them by another way, for whoever slips "
        "in a key of his own reads what is encrypted under it.",
    )


def shares(folder: Path, holders: int, t: int, min_contributions: int, bits: int, *, as_json: bool) -> None:
    """Write a new public key and one share of the secret for each holder.

    Args:
        folder: Where to.
        holders: How many there are.
        t: How many of them decrypt together.
        min_contributions: Sums of fewer are not decrypted.
        bits: Of n.
        as_json: Print one JSON object.

    Raises:
        ValueError: A number out of range.
        KeyFileError: A file is there already, or cannot be written.
    """
    # Numbers out of range are refused before the names of so many files.
    names = [key_files.share_name(i) for i in range(1, min(holders, 100) + 1)]
    _require_free(folder, [key_files.PUBLIC, *names])
    with _progress(bits) as progress:
        public, dealt = threshold.generate(
            bits, holders=holders, threshold=t, min_contributions=min_contributions, progress=progress
        )
    _make(folder)
    for share in dealt:
        key_files.write_share(folder / key_files.share_name(share.holder), share)
    key_files.write_public(folder / key_files.PUBLIC, public)
    if as_json:
        ids = {"key_id": public.key_id, "clients_key_id": public.public_key.key_id}
        facts = {**ids, "bits": bits, "holders": public.holders, "threshold": public.threshold}
        paths = {"public_key": str(folder / key_files.PUBLIC), "shares": [str(folder / name) for name in names]}
        print_json({**facts, "min_contributions": public.min_contributions, **paths})
    else:
        _explain(folder, public)


def _explain(folder: Path, public: threshold.ThresholdKey) -> None:
    screen = console()
    t, n, least = public.threshold, public.holders, public.min_contributions
    say(screen, f"Wrote {folder / key_files.PUBLIC}")
    say(
        screen,
        f"  Public: for clients, the server and the holders. Its key id is {public.key_id} for holders, and "
        f"{public.public_key.key_id} for clients (paillier-key-id); tell it them by another way.",
    )
    say(screen, f"Wrote {folder / key_files.share_name(1)}" + (f" to {folder / key_files.share_name(n)}" if n > 1 else ""))
    say(
        screen,
        "  Secret: one for each holder. Send each by a way that nobody else reads, have its key id compared, then delete it "
        "here, with its backups.",
    )
    say(screen)
    if t == 1:
        say(screen, f"Each of the {n} holders decrypts alone: every one of them must be trusted not to.")
    else:
        say(screen, f"Any {t} of the {n} holders decrypt; {t - 1} of them learn nothing, whatever they do together.")
    if n - t:
        say(screen, f"Decryption works while at most {n - t} of them are away or lie; one who lies is named.")
    else:
        say(screen, "Nothing is decrypted while one of them is away, and never again if one share is lost.")
    if 1 < t <= n / 2:
        say(screen, f"Two groups of {t} can decrypt without knowing of each other; a threshold above {n // 2} rules that out.")
    if 2 * t <= n:
        say(screen, f"No run takes such a key: two sums of one round could be opened. Take at least {n // 2 + 1} of {n}.")
    if least == 1:
        say(
            screen,
            "Holders decrypt whatever the server hands them, single contributions too: it must be trusted to hand in sums.",
        )
    else:
        say(
            screen,
            f"Holders add contributions themselves and decrypt sums of at least {least}. That each comes from another client "
            "is the server's word.",
        )
    say(
        screen,
        "The primes were in this machine's memory, and are written nowhere: whoever watched it at that moment can read "
        "everything under this key.",
    )


def _require_free(folder: Path, names: list[str]) -> None:
    """Refuse before anything is computed or written."""
    for name in names:
        if os.path.lexists(folder / name):
            raise KeyFileError(f"{folder / name}: exists, and a key file is never overwritten; choose another folder with -o")


def _make(folder: Path) -> None:
    try:
        files.make_folder(folder)
    except OSError as error:
        raise KeyFileError(f"{folder}: cannot be made a folder of keys: {error.strerror}") from error


@contextmanager
def _progress(bits: int) -> Iterator[Callable[[int], None]]:
    """A line that lives while safe primes are searched, on a terminal."""
    columns = (SpinnerColumn(), TextColumn("searching two safe primes"), TimeElapsedColumn(), TextColumn("{task.description}"))
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda tested: progress.update(
            task, description=f"{tested:,} candidates tested, of about {expected_candidates(bits):,}"
        )


OPERATIONS, STAGES = ("add", "add a constant", "multiply by a constant"), ("encrypt", "decrypt", "total")
_LEAST_BITS, _MOST_BITS = 256, 4096
# Of a key, in addition to the operand: a sign, the factor of a product and phe's room for overflows.
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
    # Drawing costs a second to import.
    from hubbub.report.pictures import draw_operation_times

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
        say(screen, "phe is not installed, so ours stand alone: pip install phe to see both.")
    say(screen, "Packing puts up to a hundred and more numbers in one ciphertext, which is not shown here.")
    say(screen, f"Wrote {folder / 'bench.png'}, bench.csv and bench.json; the keys are gone.")
