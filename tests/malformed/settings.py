"""Settings that are of no use: wrong numbers, wrong words, and names that are almost those of settings."""

import dataclasses
import datetime
import itertools
import tomllib
from collections.abc import Iterable, Iterator

from hubbub.experiment.config import Config
from malformed.base import PLAN, Case, Run, Word
from malformed.damages import holding, nothing

WHOLE = {
    "training": ("rounds", "local_epochs", "batch_size", "evaluate_every", "seed", "cohort_size"),
    "privacy": ("bands",),
    "participation": (
        "min_separation",
        "max_participations",
        "epochs",
        "rounds_per_epoch",
        "max_cohort_size",
        "cycle_length",
        "bins",
    ),
    "data": ("clients",),
    "secagg": ("key_bits", "bits", "holders", "threshold", "min_contributions", "min_survivors"),
}
REAL = {
    "training": ("learning_rate", "momentum", "weight_decay", "server_learning_rate", "server_momentum", "validation"),
    "privacy": ("clip_norm", "noise_multiplier", "epsilon", "delta", "stop_epsilon"),
    "data": ("alpha",),
    "secagg": ("clip",),
}
OTHER = {
    "training": ("server_optimizer", "keep_releases"),
    "privacy": ("mode", "strategy", "matrix", "sampling", "noise", "unit", "neighboring_relation", "accountant"),
    "participation": ("pattern",),
    "data": ("name", "path", "partition"),
    "model": ("name",),
    "secagg": ("scheme", "noise_by", "keys"),
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
