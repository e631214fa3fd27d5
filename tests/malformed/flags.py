"""Flags with values that they cannot have, and heads of a ledger that nobody kept."""

import itertools
import json
from collections.abc import Iterator

from malformed.base import ACCOUNT, CALIBRATE, GAUSSIAN, NOISY, Case, Command, Run, Word
from malformed.damages import nothing

WHOLE_FLAGS: dict[str, Command] = {
    "--rounds": (),
    "--min-separation": (),
    "--max-participations": (),
    "--epochs": ("--rounds-per-epoch", "2"),
    "--rounds-per-epoch": (),
    "--cohort-size": ("--population", "9"),
    "--population": ("--cohort-size", "2"),
    "--max-cohort-size": ("--sampling-probability", "0.5", "--population", "9"),
    "--cycle-length": ("--sampling-probability", "0.5"),
    "--bins": (),
}
REAL_FLAGS: dict[str, Command] = {"--delta": (), "--sampling-probability": ()}
ODD = ("-inf", "1e999", "0,5", "½", "ten", " ", "\x1b[31m3", "1e", "NaN(1)", "[3]", "3;4", "1\u202e2", "None", "--3")
NO_WHOLE_FLAG = (*ODD, "-7", "0x10", "1.0", "9" * 5000, "1e-3", "1.5e0", "infinity")
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
    options = {"banded-toeplitz:bands=": NO_WHOLE_FLAG, "banded:bands=2,column-norm-squared=": NO_REAL_FLAG}
    for name, values in options.items():
        for text in values:
            words = (given("--mechanism", text)[1], "is no option")
            command = (*NOISY, "--mechanism", f"{name}{text}")
            yield Case(f"{name}{text[:40]!r}", (command,), ((*words[0], words[1]),), nothing)
    release = tuple((GAUSSIAN, flag) for flag in ("--epsilon", "--delta", "--sensitivity"))
    mechanism = ((ACCOUNT, "--noise-multiplier"), (ACCOUNT, "--clip-noise-multiplier"), (CALIBRATE, "--epsilon"))
    for base, flag in (*mechanism, *release):
        for text in NO_REAL_FLAG:
            yield Case(f"{base[0]} {flag} {text[:40]!r}", ((*base, flag, text),), given(flag, text), nothing)


def kept_heads(run: Run) -> Iterator[Case]:
    head = json.loads(run.lines[-1])["hash"]
    odd = ("", " ", "0", "0" * 64, head[:-1], head + "0", head[::-1], f"sha256:{head}", " " + head, "\x1b[31m" + head, "é" * 64)
    more = (head[:-1] + "\u0430", "9" * 5000, "../" + head, "[/red]", "None", "nan", "-1", head + "\n", "\0", "\udcff")
    for text in (*odd, *more):
        commands = (("verify", "run", "--head", text), ("resume", "run", "--allow-import", "--head", text))
        yield Case(repr(text[:100]), commands, ("head", "ledger.jsonl"), nothing)
