"""Settings that cannot be: wrong numbers and words, misspelt names, contradictions, and earlier runs that are none."""

import dataclasses
import datetime
import itertools
import tomllib
from collections.abc import Iterator

from hubbub.experiment.config import Config
from malformed.base import CONFIG, PLAN, Case, Run, Word
from malformed.contents import flipped, some
from malformed.damages import KINDS, Damage, becoming, holding, nothing

EXAMPLES = ("privacy.unit=example",)
ADAPTIVE = ("privacy.clipping=adaptive",)
ENCRYPTED = ("secagg=paillier",)
# Numbers, by what must be set as well.
WHOLE: dict[tuple[str, ...], str] = {
    (): """
        training.rounds training.local_epochs training.batch_size training.evaluate_every training.seed training.cohort_size
        training.local_steps training.schedule_rounds training.workers privacy.bands privacy.buffers
        participation.min_separation participation.max_participations participation.epochs participation.rounds_per_epoch
        participation.max_cohort_size participation.cycle_length participation.bins data.clients
        secagg.key_bits secagg.bits secagg.holders secagg.threshold secagg.min_contributions secagg.min_survivors
    """,
    EXAMPLES: "training.rounds training.cohort_size training.workers training.seed",
    ENCRYPTED: """
        secagg.key_bits secagg.bits secagg.holders secagg.threshold secagg.min_contributions secagg.min_survivors
    """,
}
REAL: dict[tuple[str, ...], str] = {
    (): """
        training.learning_rate training.momentum training.weight_decay training.server_learning_rate training.server_momentum
        training.validation training.proximal training.final_learning_rate training.cooldown training.cooldown_to
        training.free_disk
        privacy.clip_norm privacy.noise_multiplier privacy.epsilon privacy.delta privacy.stop_epsilon data.alpha secagg.clip
    """,
    EXAMPLES: "privacy.noise_multiplier privacy.clip_norm training.learning_rate training.momentum",
    ADAPTIVE: "privacy.target_quantile privacy.clip_norm_learning_rate privacy.clip_count_stddev privacy.clip_norm",
    ENCRYPTED: "secagg.clip",
}
TEXTS = """
    training.server_optimizer training.schedule training.engine training.plan training.device training.precision privacy.mode
    privacy.strategy privacy.matrix privacy.sampling privacy.noise privacy.unit privacy.neighboring_relation privacy.accountant
    privacy.clipping privacy.objective participation.pattern data.name data.path data.partition model.name secagg.scheme
    secagg.noise_by secagg.keys
""".split()
SWITCHES = ("training.keep_releases", "training.fairness")
# What names a file or code may be any text; all others are words of a table alone.
FREE = ("privacy.strategy", "privacy.matrix", "data.path", "secagg.keys", "data.name", "model.name")
NO_WHOLE = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 30, "false", "[3]", "{ a = 1 }", '"7"', "3.0", "1979-05-27T07:32:00Z")
NO_REAL = ("-inf", "+nan", "1e999", "-7", "1" + "0" * 400, "1e13", "false", "[0.5]", "{ a = 1 }", '"0.5"', "07:32:00", "0.5.5")
NO_TEXT = ("nan", "3", "true", "[1]", "1979-05-27", '"\\u001b[31mred"')
# Words that are settings somewhere, and not there; and almost those.
ALMOST = (
    "Adaptive", "fixt", "clients", "exmaple", "poisson", "cpu:0", "cuda:9", "float16", "one_by_one", "batched-0", "batched--1",
)  # fmt: skip
# And are settings there.
WORDS_THERE = (("secagg.noise_by", "clients"), ("privacy.sampling", "poisson"))


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


def with_settings(*settings: str) -> tuple[str, ...]:
    return (*PLAN, *(part for setting in settings for part in ("--set", setting)))


def short(key: str) -> Word:
    """How a message may name a setting: whoever joins settings names them without their section."""
    return (key, f"{key.partition('.')[2]} = ")


def numbers(run: Run) -> Iterator[Case]:
    """Each setting with each number that it cannot be, by a flag."""
    for table, values in ((WHOLE, NO_WHOLE), (REAL, NO_REAL)):
        for base, keys in table.items():
            for key, text in itertools.product(keys.split(), values):
                # More participations than there are rounds are promised in vain, but they are a promise; so are more epochs.
                in_vain = key.endswith(("participations", "epochs", "rounds_per_epoch")) and text.startswith("1000")
                # So many examples are more than there are of clients, which is looked at first.
                if not (in_vain or (base == EXAMPLES and key.endswith("cohort_size") and text.startswith("1000"))):
                    # What is too long for a float is not shown in full.
                    value = "too large" if len(text) > 100 else shown(text)
                    name = f"{' '.join(base)} {key}={text[:40]}"
                    yield Case(name, (with_settings(*base, f"{key}={text}"),), (short(key), value), nothing)


def values_in_a_file(run: Run) -> Iterator[Case]:
    """What a flag cannot hold: tables and lists, and numbers as a file has them."""
    nested = "[plan.toml nested]"
    odd = ("nan", "-inf", "1e400", "1979-05-27", "[nan]", "[[1], [2]]", nested)
    for table, values in ((WHOLE, odd), (REAL, (*odd, "true"))):
        for key, text in itertools.product(table[()].split(), values):
            section, _, name = key.partition(".")
            line = f"[{key}]\nvalue = 3\n" if text is nested else f"[{section}]\n{name} = {text}\n"
            value = "{'value': 3}" if text is nested else shown(text)
            yield Case(f"{key} = {text}", (("plan", "bad.toml"),), (key, value), holding("bad.toml", line.encode()))


def words_that_are_none(run: Run) -> Iterator[Case]:
    for key in TEXTS:
        for text in (*NO_TEXT, *(ALMOST if key not in FREE else ())):
            # A path is whatever the loader takes it for.
            if not (key == "data.path" and "red" in text) and (key, text) not in WORDS_THERE:
                name = short(key) if "u001b" in text else key
                yield Case(f"{key}={text}", (with_settings(f"{key}={text}"),), (name, repr(parsed(text))), nothing)
    for key, text in itertools.product(SWITCHES, ("nan", "1", "0", "yes", "[true]", '"true"')):
        yield Case(f"{key}={text}", (with_settings(f"{key}={text}"),), (key, repr(parsed(text))), nothing)
    for text in ("1", "true", "[1]", "[[]]", "[nan]", "{ a = 1 }", '["run", 3]', "1979-05-27"):
        key = "privacy.earlier_runs"
        yield Case(f"{key}={text}", (with_settings(f"{key}={text}"),), (key,), nothing)


def swapped(word: str) -> str:
    """The word with its first two unlike neighbours in the wrong order."""
    at = next(i for i in range(1, len(word) - 1) if word[i] != word[i + 1])
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def misspelt_names(run: Run) -> Iterator[Case]:
    for section, key in every_key():
        for wrong in (swapped(key), key[1:], key + "x"):
            words = (f"{section}.{wrong}", f"did you mean '{key}'")
            yield Case(f"--set {section}.{wrong}", (with_settings(f"{section}.{wrong}=1"),), words, nothing)
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


def contradictions(run: Run) -> Iterator[Case]:
    """Settings that are good by themselves and do not go together; both are named."""
    together_with: dict[tuple[str, ...], tuple[str, ...]] = {
        EXAMPLES: (
            "training.local_epochs=2", "training.local_steps=3", "training.batch_size=3", "training.proximal=0.1",
            "data.clients=3", "training.fairness=true", "secagg=paillier", "training.server_optimizer=fedavgm",
            "training.engine=flower", "training.plan=one-by-one", "data.partition=user",
        ),
        ADAPTIVE: ("privacy.mode=none",),
        (): (
            "privacy.target_quantile=0.5", "privacy.clip_norm_learning_rate=0.2", "privacy.clip_count_stddev=2.0",
            "secagg.holders=3", "secagg.noise_by=clients", "secagg.threshold=1", "training.cooldown_to=0.5",
            "participation.bins=3",
            "participation.cycle_length=3", "participation.epochs=2", "participation.max_cohort_size=3", "privacy.matrix=C.npy",
            "privacy.buffers=2", "data.clients=2", "training.cohort_size=13",
            "participation.min_separation=5",
        ),
        ENCRYPTED: (
            "secagg.threshold=2", "secagg.min_contributions=4", "secagg.min_survivors=2", "secagg.key_bits=2047",
        ),
        (*ENCRYPTED, "secagg.holders=3"): ("secagg.threshold=1", "secagg.threshold=4", "secagg.noise_by=nobody"),
        (*ENCRYPTED, "secagg.noise_by=clients"): ("secagg.min_survivors=0", "secagg.min_survivors=4"),
    }  # fmt: skip
    for base, others in together_with.items():
        for other in others:
            key = other.partition("=")[0].partition(".")[2] or "secagg"
            # There no client trains, and none is counted.
            command = with_settings(*base, other)
            if base == EXAMPLES:
                command = ("plan", "examples.toml", *command[2:])
            damage = holding("examples.toml", CONFIG.replace("clients = 12\n", "").encode())
            yield Case(f"{' '.join(base)} with {other}", (command,), (key,), damage)


def earlier_runs(run: Run) -> Iterator[Case]:
    """A run that counts on another, whose folder is none, or was damaged; and what such runs cost together."""
    plan = with_settings('privacy.earlier_runs=["run"]')
    account = ("account", "run", "--delta", "1e-5")
    lines = run.lines

    def case(what: str, damage: Damage, *words: Word) -> Case:
        return Case(what, (plan, account), words or ("run/ledger.jsonl",), damage)

    content = run.files["ledger.jsonl"]
    for bit in some(40, 8 * (len(content) - 1), seed=71):
        yield case(f"bit {bit}", holding("run/ledger.jsonl", flipped(content, bit)))
    for i in range(len(lines) - 1):
        yield case(f"without line {i + 1}", holding("run/ledger.jsonl", b"".join(lines[:i] + lines[i + 1 :])))
    for k in range(2, len(lines)):
        less = holding("run/ledger.jsonl", b"".join(lines[:-k]))
        yield case(f"rolled back by {k}", less, ("release", "metrics.jsonl", "checkpoint", "key"))
    for kind in KINDS:
        yield case(f"ledger: {kind}", becoming("run/ledger.jsonl", kind), "run", "ledger.jsonl")
        if kind not in ("link", "folder"):
            yield case(f"run: {kind}", becoming("run", kind), "run")
    for odd in ("", "nowhere", "plan.toml", "/", "/dev/zero", "run/state", "\x1b[31m", "x" * 300, "run/../nowhere"):
        text = odd.replace("\x1b", "\\u001b")
        line = with_settings(f'privacy.earlier_runs=["{text}"]')
        yield Case(f"earlier {odd[:20]!r}", (line,), (odd[:5].strip("\x1b"),), nothing)
        if odd:
            yield Case(f"account {odd[:20]!r}", (("account", odd, "--delta", "1e-5"),), (odd[:5].strip("\x1b"),), nothing)
    yield Case("twice", (with_settings('privacy.earlier_runs=["run", "run"]'),), ("run",), nothing)
    yield Case("account twice", (("account", "run", "run", "--delta", "1e-5"),), ("run",), nothing)
