"""Command lines of every command: flags that are misspelt, that lack a value, or that have one that they cannot have."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import typer.main

from hubbub import factorization
from hubbub.cli.app import app
from malformed.base import ACCOUNT, CALIBRATE, GAUSSIAN, NOISY, Case, Run, Word
from malformed.contents import attacks, flipped, opened, some, tensors_file
from malformed.damages import holding, nothing
from malformed.matrices import npy
from malformed.settings import swapped

FACTORIZE, COMPARE = ("factorize", "banded", "--rounds", "6"), ("compare", "--rounds", "6")
SHARES = ("paillier", "shares", "-o", "keys", "--bits", "2048")
RANDOM = ("--sampling-probability", "0.5")
BANDED = ("--strategy", "banded", "--bands", "2", "--column-norm-squared", "1")
# Flags of account and calibrate, which take turns, with what must be there as well.
WHOLE_OF_BOTH: dict[str, tuple[str, ...]] = {
    "--rounds": (),
    "--bands": ("--strategy", "banded-toeplitz"),
    "--buffers": ("--strategy", "blt"),
    "--min-separation": (),
    "--max-participations": (),
    "--epochs": ("--rounds-per-epoch", "2"),
    "--rounds-per-epoch": (),
    "--cohort-size": ("--population", "9"),
    "--population": ("--cohort-size", "2"),
    "--max-cohort-size": (*RANDOM, "--population", "9"),
    "--cycle-length": RANDOM,
    "--bins": (),
}
REAL_OF_BOTH: dict[str, tuple[str, ...]] = {"--delta": (), "--sampling-probability": (), "--column-norm-squared": BANDED}
WHOLE_FLAGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (FACTORIZE[:2], "--rounds"),
    (FACTORIZE, "--bands"),
    (("factorize", "blt", "--rounds", "6"), "--buffers"),
    (FACTORIZE, "--min-separation"),
    ((*FACTORIZE, "--min-separation", "2"), "--max-participations"),
    ((*FACTORIZE, "--rounds-per-epoch", "2"), "--epochs"),
    (FACTORIZE, "--rounds-per-epoch"),
    (COMPARE[:1], "--rounds"),
    (COMPARE, "--bands"),
    (COMPARE, "--min-separation"),
)
REAL_FLAGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (ACCOUNT, "--noise-multiplier"),
    (ACCOUNT, "--clip-noise-multiplier"),
    (CALIBRATE, "--epsilon"),
    *((GAUSSIAN, flag) for flag in ("--epsilon", "--delta", "--sensitivity")),
    (FACTORIZE, "--momentum"),
    (COMPARE, "--momentum"),
)
PAILLIER_FLAGS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("paillier", "keygen", "-o", "keys", "--bits"): ("2047", "1024", "512", "16386", "2049"),
    (*SHARES, "--threshold", "1", "--holders"): ("101",),
    (*SHARES, "--holders", "3", "--threshold"): ("4",),
    (*SHARES, "--holders", "3", "--threshold", "2", "--min-contributions"): (),
    ("paillier", "bench", "-o", "b", "--bits"): ("128", "255", "257", "8192"),
}
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


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the program, with the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


def misspelt_flags(run: Run) -> Iterator[Case]:
    """Every flag of every command, once; and every flag without its value."""
    program = typer.main.get_command(app)
    assert isinstance(program, click.Group)
    for words, command in commands(program):
        yield Case(f"{' '.join(words)}x", ((*words[:-1], swapped(words[-1])),), (swapped(words[-1]), words[-1]), nothing)
        known = [option for option in command.params if isinstance(option, click.Option)]
        for option in known:
            flag = max(option.opts, key=len)
            wrong = flag + "x"
            yield Case(f"{' '.join(words)} {wrong}", ((*words, wrong, "1"),), (wrong,), nothing)
            if not option.is_flag:
                yield Case(f"{' '.join(words)} {flag} alone", ((*words, flag),), (flag, "argument"), nothing)
            else:
                yield Case(f"{' '.join(words)} {flag}=7", ((*words, f"{flag}=7"),), (flag,), nothing)
        yield Case(
            f"{' '.join(words)} with too much", ((*words, *"a b c d".split(), "--"),), (("a", "b", "d", "option"),), nothing
        )


def refused_flag(base: tuple[str, ...], flag: str, text: str) -> Case:
    # A value is shown as long as a line may be.
    named, shown = given(flag, text)
    return Case(f"{' '.join(base[:2])} {flag} {text[:40]!r}", ((*base, flag, text),), (named, (*shown, text[:40])), nothing)


def numbers_of_mechanisms(run: Run) -> Iterator[Case]:
    """``hubbub account``, ``calibrate`` and ``gaussian``."""
    for number, (known, values) in enumerate(((WHOLE_OF_BOTH, NO_WHOLE_FLAG), (REAL_OF_BOTH, NO_REAL_FLAG))):
        for (flag, needs), text in itertools.product(known.items(), values):
            base = CALIBRATE if (number + len(text)) % 2 else NOISY
            yield refused_flag((*base, *needs), flag, text)
    for (base, flag), text in itertools.product(REAL_FLAGS[:-2], NO_REAL_FLAG):
        yield refused_flag(base, flag, text)
    for name, values in {"banded-toeplitz:bands=": NO_WHOLE_FLAG, "banded:bands=2,column-norm-squared=": NO_REAL_FLAG}.items():
        for text in values:
            words = ((*given("", text)[1], "is no option", text[:40]),)
            yield Case(f"{name}{text[:40]!r}", ((*NOISY, "--mechanism", f"{name}{text}"),), words, nothing)


def numbers_of_strategies(run: Run) -> Iterator[Case]:
    """``hubbub factorize`` and ``compare``."""
    for (base, flag), text in itertools.product(WHOLE_FLAGS, NO_WHOLE_FLAG):
        yield refused_flag(base, flag, text)
    for (base, flag), text in itertools.product(REAL_FLAGS[-2:], (*NO_REAL_FLAG, "1", "1.5")):
        yield refused_flag(base, flag, text)


WORDS: dict[tuple[str, ...], str] = {
    ("factorize", "banded", "--rounds", "6"): "--objective",
    ("compare", "--rounds", "6"): "--objective",
    ("account", "--rounds", "6", "--delta", "1e-5", "--noise-multiplier", "1"): "--neighboring-relation",
    ("calibrate", "--rounds", "6", "--delta", "1e-5", "--epsilon", "2"): "--accountant",
    ("train", "plan.toml", "--allow-import"): "--engine",
    ("resume", "run", "--allow-import"): "--engine",
}
ODD_WORDS = ("", " ", "mena", "MEAN ", "nan", "1", "\x1b[31m", "../x", "x" * 500, "true", "[mean]", "mean,max", "½", "--", "%s")


def words_of_flags(run: Run) -> Iterator[Case]:
    """Words that are none, and files that cannot be written."""
    for text in (*ODD_WORDS, "banded,", ",tree", "banded;tree", "file", "banded,banded,nothing"):
        yield Case(
            f"compare --families {text[:20]!r}", (("compare", "--rounds", "6", "--families", text),), ("--families",), nothing
        )
        yield Case(f"factorize {text[:20]!r}", (("factorize", text, "--rounds", "6"),), (), nothing)
    for base, flag in WORDS.items():
        for text in ODD_WORDS:
            word: Word = (flag, flag[2:].replace("-", "_"), "relation")
            yield Case(f"{base[0]} {flag} {text[:20]!r}", ((*base, flag, text),), (word,), nothing)
    for text in ("s.npy", "no/s.safetensors", "s", "", "run", ".safetensors/x", "s.safetensors\x1b[31m", "s.SAFETENSORS "):
        line = ("factorize", "banded", "--rounds", "6", "--output", text)
        yield Case(f"--output {text!r}", (line,), ("--output",), nothing)
    for command, text in itertools.product(("factorize banded", "compare"), ("s.pdf", "no/s.png", "s", "", "run", "s.png/x")):
        line = (*command.split(), "--rounds", "6", "--plot", text)
        yield Case(f"{command} --plot {text!r}", (line,), ("--plot",), nothing)


def paillier_commands(run: Run) -> Iterator[Case]:
    for (*base, flag), outside in PAILLIER_FLAGS.items():
        for text in (*NO_WHOLE_FLAG, "0", *(("-1", "true") if base[1] != "bench" else ()), *outside):
            yield refused_flag(tuple(base), flag, text)
    for text in (
        "",
        ",",
        "10,,20",
        "10;20",
        "ten",
        "1",
        "0",
        "-5",
        "1001",
        "10.5",
        "1e3",
        "10,",
        "nan",
        "10 20",
        "\x1b[31m",
        "9" * 50,
    ):
        yield Case(f"bench --sizes {text[:20]!r}", (("paillier", "bench", "-o", "b", "--sizes", text),), ("--sizes",), nothing)
    for command in ("keygen", "shares --holders 2 --threshold 2"):
        line = ("paillier", *command.split(), "--bits", "2048", "-o")
        taken = holding("keys/public-key.json", b"mine")
        yield Case(f"{command}: taken", ((*line, "keys"),), ("keys/public-key.json", "never overwritten"), taken)
        for file in ("plan.toml/keys", "x" * 300):
            if command == "keygen":
                yield Case(f"{command}: {file[:20]!r}", ((*line, file),), (file[:9],), nothing)


def flower_commands(run: Run) -> Iterator[Case]:
    """Names that no package can have; a folder that is there."""
    names = (
        "App", "my-app", "1app", "_app", "app name", "app.py", "class", "import", "os", "json", "torch", "hubbub", "flwr",
        "numpy", "", ".", "..", "/", "~", "../Up", "a/b.c", "é", "app\n", "app\x1b[31m", "\u202eppa", "x" * 300 + "-",
        "nul\0", "a;b", "$(a)",
    )  # fmt: skip
    for name in names:
        yield Case(f"flower new {name[:20]!r}", (("flower", "new", "--", name),), ("NAME = ",), nothing)
    yield Case("a folder that is there", (("flower", "new", "run"),), ("run", "exists already"), nothing)
    yield Case("a file in its way", (("flower", "new", "app"),), ("app", "exists already"), holding("app", b"mine"))


def rates(run: Run) -> Iterator[Case]:
    """Files of learning rates."""
    good = np.linspace(1.0, 0.1, 6)
    whole = npy(good)
    line = ("factorize", "banded", "--rounds", "6", "--learning-rates", "rates.npy")

    def case(what: str, content: bytes, *words: Word) -> Case:
        return Case(what, (line,), ("rates.npy", *words), holding("rates.npy", content))

    for place, odd in itertools.product((0, 3, 5), (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300)):
        array = good.copy()
        array[place] = odd
        yield case(f"{odd} at {place}", npy(array), f"[{place}]")
    for shape in ((3,), (7,), (6, 1), (1, 6), (2, 3), (), (0,)):
        yield case(f"shape {shape}", npy(np.ones(shape)))
    for dtype in ("float16", "int64", "bool", "complex128", "S8", "U8"):
        yield case(dtype, npy(np.ones(6).astype(dtype)))
    for cut in some(30, len(whole), seed=41):
        yield case(f"cut at {cut}", whole[:cut])
    for bit in some(30, 8 * 64, seed=42):
        # The name of the version and the padding say nothing.
        yield from () if bit // 8 in (6, 7) else [case(f"bit {bit} of the header", flipped(whole, bit))]
    for what, content in {"text": b"1,0.5\n", "empty": b"", "zeros": bytes(300), "JSON": b"[1, 1]"}.items():
        yield case(what, content)


def strategy_files(run: Run) -> Iterator[Case]:
    """What ``hubbub factorize -o`` might have written, and did not."""
    from hubbub.factorization import strategy_file
    from hubbub.mechanism.workloads import prefix_sum

    strategy_file.save("whole.safetensors", factorization.toeplitz.optimize(prefix_sum(rounds=6), bands=3))
    whole = Path("whole.safetensors").read_bytes()
    name = "s.safetensors"
    lines = itertools.cycle(
        [
            (("factorize", "file", "--matrix", name),),
            ((*NOISY, "--mechanism", name), (*NOISY, "--strategy", "file", "--matrix", name)),
        ]
    )
    header, data = opened(whole)
    said = json.loads(header["__metadata__"]["hubbub"])

    def case(what: str, content: bytes, *words: Word) -> Case:
        return Case(what, next(lines), (name, *words), holding(name, content))

    for what, content in attacks(whole):
        yield case(what, content)
    wrong = (None, True, -1, 1.5, "x\x1b[31m", [1], {"a": 1}, 10**30, "\u202e", float("inf"))
    free = {"command", "hubbub", "bound_family"}
    for key, odd in itertools.product(said, (*wrong, ...)):
        stated = {k: v for k, v in said.items() if k != key} | ({} if odd is ... else {key: odd})
        # Text is what somebody says of it, and nobody knows how long it took, or it took so long.
        if (key in free and isinstance(odd, str)) or (key == "seconds" and odd in (None, 1.5, 10**30)):
            continue
        if (key, odd) == ("iterations", 10**30) or (key in ("squared_error", "lower_bound") and odd in (1.5, 10**30)):
            continue
        text = json.dumps(stated)
        yield case(
            f"{key}: {str(odd)[:20]!r}", tensors_file({**header, "__metadata__": {"hubbub": text}}, data), (key, "Infinity")
        )
    for key in ("l2_sensitivity", "sensitivity", "epsilon", "noise_multiplier", "\x1b[31m", ""):
        text = json.dumps({**said, key: 1.0})
        yield case(
            f"more: {key!r}", tensors_file({**header, "__metadata__": {"hubbub": text}}, data), "no part of a strategy file"
        )


def kept_heads(run: Run) -> Iterator[Case]:
    head = json.loads(run.lines[-1])["hash"]
    odd = ("", " ", "0", "0" * 64, head[:-1], head + "0", head[::-1], f"sha256:{head}", " " + head, "\x1b[31m" + head, "é" * 64)
    more = (head[:-1] + "\u0430", "9" * 5000, "../" + head, "[/red]", "None", "nan", "-1", head + "\n", "\0", "\udcff")
    for text in (*odd, *more):
        commands = (("verify", "run", "--head", text), ("resume", "run", "--allow-import", "--head", text))
        yield Case(repr(text[:100]), commands, ("head", "ledger.jsonl"), nothing)
