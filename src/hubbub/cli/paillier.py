"""``hubbub paillier``: key files, and the time of encryption, arithmetic and decryption, ours and phe's."""

import importlib
import importlib.util
import itertools
import json
import operator
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hubbub._util import __version__, files
from hubbub._util.checks import Array, integer, shown
from hubbub.cli.output import console, print_json, say
from hubbub.errors import ConfigError, KeyFileError
from hubbub.secagg import key_files, paillier, threshold
from hubbub.secagg.primes import prime_pair


def keygen(folder: Path, bits: int, *, as_json: bool) -> None:
    """Write a new private key and its public key."""
    _require_free(folder, [key_files.PUBLIC, key_files.PRIVATE])
    private = paillier.generate(bits)
    public = private.public_key
    files.make_folder(folder)
    key_files.write_private(folder / key_files.PRIVATE, private)
    key_files.write_public(folder / key_files.PUBLIC, public)
    if as_json:
        paths = {"public_key": str(folder / key_files.PUBLIC), "private_key": str(folder / key_files.PRIVATE)}
        print_json({"key_id": public.key_id, "bits": public.bits, **paths})
        return
    say(
        console(),
        f"Wrote {folder / key_files.PRIVATE}",
        "  Secret: it decrypts every contribution, not only sums. For one owner who is not the server and never sees single "
        "contributions; 'hubbub paillier shares' needs no such owner.",
        f"Wrote {folder / key_files.PUBLIC}",
        f"  Public: for clients and the server. Its key id is {public.key_id}; send it to them over another channel, since "
        "whoever replaces the key can decrypt what is encrypted under it.",
    )


def shares(folder: Path, holders: int, t: int, min_contributions: int, bits: int, *, as_json: bool) -> None:
    """Write a new public key and one share of the private key for each holder."""
    if holders == 1:
        raise ConfigError("--holders = 1: one owner has a whole key; say 'hubbub paillier keygen'")
    if 0 < t <= holders // 2:
        raise ConfigError(
            f"--threshold = {t}: no run accepts such a key of {holders} holders, by which two sums of one round could be "
            f"decrypted; say {holders // 2 + 1} or more"
        )
    # A number of holders out of range is refused below.
    names = [key_files.share_name(i) for i in range(1, min(holders, 100) + 1)]
    _require_free(folder, [key_files.PUBLIC, *names])
    words = "searching for two safe primes"
    with console(stderr=True).status(words) as status:
        public, dealt = threshold.generate(
            bits,
            holders=holders,
            threshold=t,
            min_contributions=min_contributions,
            progress=lambda tested: status.update(f"{words}: {tested:,} candidates tested"),
        )
    files.make_folder(folder)
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
    t, n, least = public.threshold, public.holders, public.min_contributions
    say(
        console(),
        f"Wrote {folder / key_files.PUBLIC}",
        f"  Public: for clients, the server and the holders. Its key id is {public.key_id} for holders, and "
        f"{public.public_key.key_id} for clients (paillier-key-id); send it to them over another channel.",
        f"Wrote {folder / key_files.share_name(1)} to {folder / key_files.share_name(n)}",
        "  Secret: one for each holder. Send each over a confidential channel, have its key id compared, then delete it here, "
        "with its backups.",
        "",
        f"Any {t} of the {n} holders decrypt; {t - 1} of them decrypt nothing by themselves. A server that cheats "
        "can have single contributions decrypted, by runs and contributions that it makes up: it must be trusted not to.",
        f"Decryption works while at most {n - t} of them are away or lie; a holder who lies is named."
        if n > t
        else "Nothing is decrypted while one of them is away, and never again if one share is lost.",
        "Holders decrypt whatever the server sends, single contributions too: it must be trusted to send sums."
        if least == 1
        else f"Holders add contributions themselves and decrypt sums of at least {least}. They trust the server that each "
        "comes from another client.",
        "The primes were in this machine's memory and are stored nowhere: whoever read it at that moment can decrypt "
        "everything under this key.",
    )


def _require_free(folder: Path, names: list[str]) -> None:
    """Refuse to overwrite, before anything is computed."""
    for name in names:
        if os.path.lexists(folder / name):
            raise KeyFileError(f"{folder / name}: exists, and a key file is never overwritten; choose another folder with -o")


OPERATIONS, STAGES = ("add", "add a constant", "multiply by a constant"), ("encrypt", "decrypt", "total")
# Bits of a key beyond the operand: a sign, the factor of a product and phe's margin for overflows.
_ROOM = 24
_REPEATS = 9
# Numbers in one call of ours, as arrays are encrypted.
_TOGETHER = 16


@dataclass(frozen=True)
class _Subject:
    """One implementation: how many numbers it takes ``together``, and what encrypts and decrypts them.

    Ciphertexts take operators, with either as many more or one constant.
    """

    name: str
    together: int
    encrypt: Callable[[list[int]], Any]
    decrypt: Callable[[Any], list[int]]


def bench(folder: Path, bits: int, sizes: str | None, *, as_json: bool) -> None:
    """Measure with temporary keys, and write ``bench.png`` and ``bench.json``."""
    import gmpy2

    from hubbub.report.pictures import draw_operation_times

    key_bits = integer("bits", bits, at_least=256, at_most=4096)
    wanted, subjects = _sizes(sizes, key_bits), _subjects(key_bits)
    files.make_folder(folder)
    screen = console()
    if not as_json:
        say(screen, "Measuring with temporary keys: about half a minute at 1024 bits, longer at more")
    seconds = measured(subjects, wanted, key_bits)
    times = [
        {"implementation": name, "operation": operation, "stage": stage, "operand_bits": size, "seconds": value}
        for (stage, operation), curves in seconds.items()
        for name, curve in curves.items()
        for size, value in zip(wanted, curve.tolist(), strict=True)
    ]
    versions = {"hubbub": __version__, "gmpy2": gmpy2.version(), "gmp": gmpy2.mp_version(), "phe": _phe_version()}
    told = {"bits": key_bits, **versions, "times": times}
    alone = "" if _phe_version() else "; phe is not installed"
    subtitle = (
        f"per number, with a key of {key_bits} bits: CPU time, minimum of {_REPEATS}; ours {_TOGETHER} in a call, none packed; "
        f"an addition encrypts two{alone}"
    )
    picture = draw_operation_times("Paillier: time over the length of the operand", subtitle, wanted, seconds)
    files.write_atomic(folder / "bench.json", json.dumps(told, indent=1).encode() + b"\n", mode=0o644)
    files.write_atomic(folder / "bench.png", picture, mode=0o644)
    if as_json:
        print_json({**told, "folder": str(folder)})
        return
    say(screen, f"A key of {key_bits} bits, one number in a ciphertext; CPU milliseconds per number, median over the sizes:")
    for (stage, operation), curves in seconds.items():
        words = ", ".join(f"{name} {1e3 * float(np.median(curve)):.4g}" for name, curve in curves.items())
        say(screen, f"  {stage:8} {operation:23} {words}")
    say(
        screen,
        *(["phe is not installed; pip install phe compares both."] if alone else []),
        "Packing, which puts a hundred numbers and more into one ciphertext, is not measured here.",
        f"Wrote {folder / 'bench.png'} and bench.json; the keys were deleted.",
    )


def measured(subjects: Sequence[_Subject], sizes: Sequence[int], key_bits: int) -> dict[tuple[str, str], dict[str, Array]]:
    """CPU seconds per number by stage and operation, then by implementation, ``(sizes,)``: the minimum of several repetitions.

    Implementations and sizes alternate, so that a busy machine disturbs all alike. An addition takes two encryptions.
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


def _once(subject: _Subject, operation: str, size: int, key_bits: int) -> tuple[float, float, float]:
    # A product must fit.
    length = min(size, key_bits - 3 - size) if operation == OPERATIONS[2] else size
    constant = secrets.randbits(size) | 1 << (size - 1)
    numbers = [secrets.randbits(length) | 1 << (length - 1) for _ in range(subject.together)]
    started = time.process_time()
    encrypted = subject.encrypt(numbers)
    operand = subject.encrypt([constant] * subject.together) if operation == OPERATIONS[0] else constant
    ready = time.process_time()
    symbol = operator.mul if operation == OPERATIONS[2] else operator.add
    result = symbol(encrypted, operand)
    applied = time.process_time()
    answers = subject.decrypt(result)
    ended = time.process_time()
    if answers != [symbol(number, constant) for number in numbers]:
        raise RuntimeError(f"{subject.name}: {operation} of numbers of {size} bits came out wrong")
    encrypting, decrypting, whole = ready - started, ended - applied, ended - started
    return encrypting / subject.together, decrypting / subject.together, whole / subject.together


def _subjects(key_bits: int) -> list[_Subject]:
    """Ours, and phe's if it is installed, with one key."""
    p, q = prime_pair(key_bits)
    private = paillier.PrivateKey.from_primes(p, q)
    found = [_Subject("hubbub", _TOGETHER, private.public_key.encrypt, private.decrypt)]
    # The first call makes a table.
    private.public_key.encrypt(0)
    if _phe_version():
        phe = importlib.import_module("phe")
        theirs = phe.PaillierPublicKey(p * q)
        opened = phe.PaillierPrivateKey(theirs, p, q)
        # An array applies an operator to each of its entries.
        found.append(
            _Subject(
                "phe",
                2,
                lambda numbers: np.array([theirs.encrypt(number) for number in numbers], dtype=object),
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
        raise ConfigError(f"--sizes {shown(text)}: must be whole numbers with commas between, such as 10,100,1000") from None
    return sorted({integer("--sizes", size, at_least=2, at_most=most) for size in asked})
