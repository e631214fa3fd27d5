"""The grid: which settings take which values, and its cells: each combination as settings of a run, checked in advance."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from hubbub.errors import ConfigError, HubbubError
from hubbub.experiment import config as configs
from hubbub.experiment.config import Config, Layer, overrides
from hubbub.report.sweep_summary import value_words

__all__ = ["SEED", "Axis", "Cell", "Grid", "absolute", "cells_of", "grid_of", "require_runnable", "worded"]

# Cells that differ by it alone are repetitions of one another.
SEED = "training.seed"
_PAIRS = {"[": "]", "{": "}"}
_MOST_CELLS = 10_000
_UNFIT = re.compile(r"[^A-Za-z0-9._=,+-]+")
_LONGEST_NAME = 100


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

    def absolute(self, here: Path) -> "Grid":
        """The grid with files by their whole names; see :func:`absolute`."""
        return Grid(tuple(Axis(axis.key, tuple(_whole(axis.key, value, here) for value in axis.values)) for axis in self.axes))


def grid_of(flags: Sequence[str], seeds: str | None = None) -> Grid:
    """The grid of ``--grid section.key=VALUE,VALUE`` flags, each value read as that of ``--set``.

    Args:
        flags: One a key.
        seeds: Values of ``training.seed``, with commas between them; they are the last axis.

    Raises:
        ConfigError: Not of that form, an empty value, one that comes twice, or a key that does.

    Example:
        >>> [axis.values for axis in grid_of(["privacy.clip_norm=0.1,0.5"], seeds="1,2,3").axes]
        [(0.1, 0.5), (1, 2, 3)]
    """
    axes = [_axis("--grid", flag) for flag in flags]
    if seeds is not None:
        if not seeds.strip():
            raise ConfigError("--seeds: has no values; write whole numbers with commas between them, such as --seeds 1,2,3")
        axes.append(_axis("--seeds", f"{SEED}={seeds}"))
    if not axes:
        raise ConfigError("--grid: is missing; name a setting and its values, such as --grid privacy.clip_norm=0.1,0.3,0.5")
    keys = [axis.key for axis in axes]
    if twice := [key for key in keys if keys.count(key) > 1]:
        same = " (--seeds is the same setting)" if twice[0] == SEED and seeds is not None else ""
        raise ConfigError(f"--grid {twice[0]}: is given twice{same}; name it once")
    if (number := prod(len(axis.values) for axis in axes)) > _MOST_CELLS:
        raise ConfigError(f"--grid: makes {number:,} runs, at most {_MOST_CELLS:,} are made; leave some values out")
    return Grid(tuple(axes))


def _axis(flag: str, text: str) -> Axis:
    name, equals, listed = text.partition("=")
    if not (equals and listed.strip()):
        raise ConfigError(f"{flag} {text!r}: has no values; write section.key=value,value, such as privacy.clip_norm=0.1,0.5")
    values: list[Any] = []
    key = name
    for part in _split(listed):
        if not part.strip():
            raise ConfigError(f"{flag} {name.strip()}: has an empty value; write one between each two commas")
        try:
            ((section, keys),) = overrides([f"{name}={part}"]).items()
        except ConfigError as error:
            raise ConfigError(str(error).replace("--set", flag, 1)) from error
        ((short, value),) = keys.items()
        key = f"{section}.{short}"
        if value in values:
            raise ConfigError(f"{flag} {text!r}: has {value!r} twice; a run is made once, repeat it with another training.seed")
        values.append(value)
    return Axis(key, tuple(values))


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


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Args:
        name: Of its folder.
        settings: Its values on the grid, by dotted key.
        config: All of its settings, checked.
    """

    name: str
    settings: Mapping[str, Any]
    config: Config

    @property
    def point(self) -> tuple[Any, ...]:
        """Its place on the grid, seed aside."""
        return tuple(value for key, value in self.settings.items() if key != SEED)


def worded(settings: Mapping[str, Any]) -> str:
    """Settings as a message names them.

    Example:
        >>> worded({"privacy.clip_norm": 0.5, "training.engine": "flower", "data.path": None})
        "privacy.clip_norm = 0.5, training.engine = 'flower', data.path = default"
    """
    return ", ".join(f"{key} = {'default' if value is None else repr(value)}" for key, value in settings.items())


def cells_of(base: Layer, grid: Grid) -> tuple[Cell, ...]:
    """All cells, in the order of the grid.

    Args:
        base: What all have in common.
        grid: What they differ in.

    Raises:
        ConfigError: The settings of a cell are refused, or two cells are the same run.

    Example:
        >>> [cell.name for cell in cells_of({}, grid_of(["privacy.clip_norm=0.1,0.5"]))]
        ['1-clip_norm=0.1', '2-clip_norm=0.5']
    """
    points = list(grid.points())
    digits = len(str(len(points)))
    cells: list[Cell] = []
    known: dict[Config, Cell] = {}
    for number, settings in enumerate(points, start=1):
        layer: Layer = {}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            layer.setdefault(section, {})[name] = value
        try:
            config = configs.resolve(base, layer)
        except ConfigError as error:
            raise ConfigError(f"the cell {worded(settings)}: {error}") from error
        short = ",".join(f"{key.partition('.')[2]}={value_words(value)}" for key, value in settings.items())
        cell = Cell(f"{number:0{digits}d}-{_UNFIT.sub('-', short)[:_LONGEST_NAME]}", settings, config)
        if (other := known.setdefault(config, cell)) is not cell:
            same = f"{worded(other.settings)} and {worded(settings)}"
            raise ConfigError(f"--grid: {same} are the same run; leave one of the two values out")
        cells.append(cell)
    if len(cells) > 1 and (origin := next((c.config.training.extends for c in cells if c.config.training.extends), None)):
        raise ConfigError(
            f"training.extends = {origin!r}: the privacy cost of each cell would have to count all others that start from this "
            "run; sweep before you extend, or extend with one setting after the other ('hubbub extend')"
        )
    return tuple(cells)


def require_runnable(cells: Sequence[Cell], *, allow_import: bool = False) -> None:
    """Refuse, before anything is computed or written, cells that could not begin; data are read once for what they share.

    Raises:
        ConfigError: A cell whose settings cannot be run; it is named.
        HubbubError: Data that are missing.
    """
    from hubbub.experiment.build import build, client_side
    from hubbub.experiment.planner import planned

    clients: dict[Config, int] = {}
    for cell in cells:
        config, shared = cell.config, _shared(cell.config)
        try:
            if shared not in clients:
                clients[shared] = len(client_side(shared, allow_import=allow_import).population.clients)
            planned(config, clients[shared], allow_import=allow_import)
            if config.training.engine == "flower":
                from hubbub.experiment.engine.apps import require_flower

                require_flower()
            if config.secagg.scheme != "none":
                from hubbub.experiment.engine.parties import require_keys

                # What encrypts is checked as a whole: keys, and who may open what.
                run = build(config, allow_import=allow_import)
                if run.encryption and config.training.engine == "process":
                    require_keys(run, run.encryption)
        except (HubbubError, ValueError, TypeError) as error:
            raise ConfigError(f"the cell {worded(cell.settings)}: {error}") from error


def _shared(config: Config) -> Config:
    """Of the settings what data and model are made of."""
    privacy = configs.PrivacyConfig(unit=config.privacy.unit, noise=config.privacy.noise)
    usual = configs.TrainingConfig()
    training = replace(config.training, rounds=usual.rounds, evaluate_every=usual.evaluate_every)
    return Config(training=training, privacy=privacy, data=config.data, model=config.model)


def absolute(layer: Layer, here: Path) -> Layer:
    """The layer with files and folders by their whole names, so that it says the same wherever a sweep is resumed."""
    return {
        section: {key: _whole(f"{section}.{key}", value, here) for key, value in keys.items()}
        for section, keys in layer.items()
    }


def _whole(key: str, value: Any, here: Path) -> Any:
    if key == "privacy.earlier_runs" and isinstance(value, list):
        return [str(here / Path(name).expanduser()) if isinstance(name, str) else name for name in value]
    named = key in ("data.path", "privacy.matrix", "secagg.keys") and isinstance(value, str)
    return str(here / Path(value).expanduser()) if named else value
