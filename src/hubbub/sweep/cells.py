"""The cells of a sweep: each value of the grid as settings of a run, checked before the first one begins."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubbub import config as configs
from hubbub.config import Config, Layer
from hubbub.errors import ConfigError, HubbubError
from hubbub.report.sweep_told import value_words
from hubbub.sweep.grid import SEED, Axis, Grid

__all__ = ["Cell", "absolute", "absolute_grid", "cells_of", "require_runnable", "worded"]

_UNFIT = re.compile(r"[^A-Za-z0-9._=,+-]+")
_LONGEST_NAME = 100


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
    def words(self) -> str:
        """The cell as messages name it."""
        return worded(self.settings)

    @property
    def point(self) -> tuple[Any, ...]:
        """Its place on the grid, seed aside."""
        return tuple(value for key, value in self.settings.items() if key != SEED)


def worded(settings: Mapping[str, Any]) -> str:
    """Settings as a message names them."""
    return ", ".join(f"{key} = {'default' if value is None else repr(value)}" for key, value in settings.items())


def cells_of(base: Layer, grid: Grid) -> tuple[Cell, ...]:
    """All cells, in the order of the grid.

    Args:
        base: What all have in common.
        grid: What they differ in.

    Raises:
        ConfigError: The settings of a cell are refused, or two cells are the same run.
    """
    points = list(grid.points())
    digits = len(str(len(points)))
    cells: list[Cell] = []
    known: dict[Config, Cell] = {}
    for number, settings in enumerate(points, start=1):
        try:
            config = configs.resolve(base, _layer(settings))
        except ConfigError as error:
            raise _named(settings, error) from error
        cell = Cell(f"{number:0{digits}d}-{_slug(settings)}", settings, config)
        if (other := known.setdefault(config, cell)) is not cell:
            raise ConfigError(f"--grid: {other.words} and {cell.words} are the same run; leave one of the two values out")
        cells.append(cell)
    if len(cells) > 1 and (origin := next((c.config.training.extends for c in cells if c.config.training.extends), None)):
        raise ConfigError(
            f"training.extends = {origin!r}: cells that go on from one run would each have to be charged with all others; "
            "sweep before you go on, or extend with one setting after the other ('hubbub extend')"
        )
    return tuple(cells)


def require_runnable(cells: Sequence[Cell], *, allow_import: bool = False) -> None:
    """Refuse, before anything is computed or written, cells that could not begin; data are read once for what they share.

    Raises:
        ConfigError: A cell whose settings cannot be run; it is named.
        HubbubError: Data that are missing.
    """
    from hubbub.build import client_side
    from hubbub.planned import planned

    clients: dict[Config, int] = {}
    for cell in cells:
        config, shared = cell.config, _shared(cell.config)
        try:
            if shared not in clients:
                clients[shared] = len(client_side(shared, allow_import=allow_import).population.clients)
            plan = planned(config, clients[shared], allow_import=allow_import)
            _require_engine(config, plan.expected_cohort_size, allow_import)
        except (HubbubError, ValueError, TypeError) as error:
            raise _named(cell.settings, error) from error


def _require_engine(config: Config, expected: float, allow_import: bool) -> None:
    """What has to be there for the run to be carried out, beside its plan."""
    if config.training.engine == "flower":
        from hubbub.engine.apps import require_flower

        require_flower()
    if config.secagg.scheme == "none":
        return
    # What encrypts is checked as a whole: keys, and who may open what.
    from hubbub.build import build
    from hubbub.engine.parties import require_keys

    run = build(config, allow_import=allow_import)
    if run.encryption and config.training.engine == "process":
        require_keys(run, run.encryption)


def _shared(config: Config) -> Config:
    """Of the settings what data and model are made of."""
    told = config.privacy
    privacy = configs.PrivacyConfig(unit=told.unit, noise=told.noise)
    usual = configs.TrainingConfig()
    training = replace(config.training, rounds=usual.rounds, evaluate_every=usual.evaluate_every)
    return Config(training=training, privacy=privacy, data=config.data, model=config.model)


def _layer(settings: Mapping[str, Any]) -> Layer:
    layer: Layer = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        layer.setdefault(section, {})[name] = value
    return layer


def _named(settings: Mapping[str, Any], error: Exception) -> ConfigError:
    return ConfigError(f"the cell {worded(settings)}: {error}")


def _slug(settings: Mapping[str, Any]) -> str:
    """Settings as part of a folder's name."""
    return _UNFIT.sub("-", ",".join(f"{key.partition('.')[2]}={value_words(value)}" for key, value in settings.items()))[
        :_LONGEST_NAME
    ]


def absolute_grid(grid: Grid, here: Path) -> Grid:
    """The grid, its values as :func:`absolute` has them."""
    axes = []
    for axis in grid.axes:
        section, _, key = axis.key.partition(".")
        axes.append(Axis(axis.key, tuple(absolute({section: {key: value}}, here)[section][key] for value in axis.values)))
    return Grid(tuple(axes))


def absolute(layer: Layer, here: Path) -> Layer:
    """The layer with files and folders by their whole names, so that it says the same wherever a sweep is gone on with."""

    def whole(name: object) -> object:
        return str(here / Path(name).expanduser()) if isinstance(name, str) else name

    found = {section: dict(keys) for section, keys in layer.items()}
    for section, key in (("data", "path"), ("privacy", "matrix"), ("secagg", "keys")):
        if key in found.get(section, {}):
            found[section][key] = whole(found[section][key])
    earlier = found.get("privacy", {}).get("earlier_runs")
    if isinstance(earlier, list):
        found["privacy"]["earlier_runs"] = [whole(name) for name in earlier]
    return found
