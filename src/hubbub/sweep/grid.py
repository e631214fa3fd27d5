"""The grid: which settings take which values, as it is typed and as it is kept."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hubbub.config import overrides
from hubbub.errors import ConfigError

__all__ = ["SEED", "Axis", "Grid", "grid_of"]

# Cells that differ by it alone are repetitions of one another.
SEED = "training.seed"
_PAIRS = {"[": "]", "{": "}"}
_MOST_CELLS = 10_000


@dataclass(frozen=True)
class Axis:
    """One setting and the values that it takes: ``key`` is dotted, each value is as TOML has it."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Grid:
    """All combinations of the values of some settings; the last of ``axes`` moves fastest."""

    axes: tuple[Axis, ...]

    @property
    def shown(self) -> tuple[Axis, ...]:
        """The axes without that of the seed, over which results are averaged."""
        return tuple(axis for axis in self.axes if axis.key != SEED)

    def points(self) -> Iterator[Mapping[str, Any]]:
        """The value of each key, combination by combination."""
        for values in itertools.product(*(axis.values for axis in self.axes)):
            yield {axis.key: value for axis, value in zip(self.axes, values, strict=True)}


def grid_of(flags: Sequence[str], seeds: str | None = None) -> Grid:
    """The grid of ``--grid section.key=VALUE,VALUE`` flags, each value read as that of ``--set``.

    Args:
        flags: One a key.
        seeds: Values of ``training.seed``, with commas between them; they are the last axis.

    Raises:
        ConfigError: Not of that form, an empty value, one that comes twice, or a key that does.
    """
    axes = [_axis("--grid", flag) for flag in flags]
    if seeds is not None:
        if not seeds.strip():
            raise ConfigError("--seeds: has no values; write whole numbers with commas between them, such as --seeds 1,2,3")
        axes.append(_axis("--seeds", f"{SEED}={seeds}"))
    if not axes:
        raise ConfigError("--grid: is missing; name a setting and its values, such as --grid privacy.clip_norm=0.1,0.3,0.5")
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            by_seeds = key == SEED and seeds is not None
            raise ConfigError(
                f"--grid {key}: is given twice{' (--seeds is the same setting)' if by_seeds else ''}; name it once"
            )
    number = 1
    for axis in axes:
        number *= len(axis.values)
    if number > _MOST_CELLS:
        raise ConfigError(f"--grid: makes {number:,} runs, at most {_MOST_CELLS:,} are made; leave some values out")
    return Grid(tuple(axes))


def _axis(flag: str, text: str) -> Axis:
    name, equals, listed = text.partition("=")
    if not (equals and listed.strip()):
        raise ConfigError(f"{flag} {text!r}: has no values; write section.key=value,value, such as privacy.clip_norm=0.1,0.5")
    values = [_value(flag, name, value) for value in _split(listed)]
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ConfigError(f"{flag} {text!r}: has {value!r} twice; a run is made once, repeat it with another training.seed")
    return Axis(_key(flag, name), tuple(values))


def _key(flag: str, name: str) -> str:
    ((section, keys),) = _layer(flag, name, "0").items()
    return f"{section}.{next(iter(keys))}"


def _value(flag: str, name: str, text: str) -> Any:
    if not text.strip():
        raise ConfigError(f"{flag} {name.strip()}: has an empty value; write one between each two commas")
    ((_, keys),) = _layer(flag, name, text).items()
    return next(iter(keys.values()))


def _layer(flag: str, name: str, text: str) -> dict[str, dict[str, Any]]:
    try:
        return overrides([f"{name}={text}"])
    except ConfigError as error:
        raise ConfigError(str(error).replace("--set", flag, 1)) from error


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand in no brackets and no quotes, as TOML has them."""
    begun, expected, quote = 0, [], ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _PAIRS:
            expected.append(_PAIRS[letter])
        elif expected and letter == expected[-1]:
            expected.pop()
        elif letter == "," and not expected:
            yield text[begun:place]
            begun = place + 1
    yield text[begun:]
