"""The grid of a sweep, its cells, and the record in its folder by which it resumes."""

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from hubbub import __version__
from hubbub._util import files, strict_json
from hubbub.errors import ConfigError, HubbubError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build, client_side, require_allowed
from hubbub.experiment.config import Config, Layer, overrides
from hubbub.experiment.planner import planned
from hubbub.experiment.settings import require_engine

# Cells that differ in the seed alone are repetitions of one point.
SEED = "training.seed"
# In a sweep's folder: its record, and the folders of its runs.
RECORD, CELLS = "sweep.json", "cells"
# Settings by dotted key with their values; a sweep has all combinations, and the last setting varies fastest.
Grid = Mapping[str, Sequence[Any]]

_SCHEMA = 1
_LARGEST = 2**24
_MOST_CELLS = 10_000
_UNFIT = re.compile(r"[^A-Za-z0-9._=,+-]+")
_LONGEST_NAME = 100
# A comma between values, or a TOML string, array or table, whose commas are its own.
_COMMA = re.compile(r"""("[^"]*"|'[^']*'|\[(?:"[^"]*"|'[^']*'|[^]"'])*\]|\{[^}]*\})|,""")


def grid_of(flags: Sequence[str], seeds: str | None = None) -> Grid:
    """The grid of ``--grid section.key=VALUE,VALUE`` flags, each value read as that of ``--set``.

    Example:
        >>> grid_of(["privacy.clip_norm=0.1,0.5"], seeds="1,2,3")
        {'privacy.clip_norm': [0.1, 0.5], 'training.seed': [1, 2, 3]}
    """
    grid: dict[str, list[Any]] = {}
    for flag, text in [*(("--grid", flag) for flag in flags), *([] if seeds is None else [("--seeds", f"{SEED}={seeds}")])]:
        key, values = _values(flag, text)
        if key in grid:
            raise ConfigError(f"{flag} {key}: is given twice; name it once")
        grid[key] = values
    if not grid:
        raise ConfigError("--grid: is missing; name a setting and its values, such as --grid privacy.clip_norm=0.1,0.3,0.5")
    if (number := prod(map(len, grid.values()))) > _MOST_CELLS:
        raise ConfigError(f"--grid: makes {number:,} runs, at most {_MOST_CELLS:,} are allowed; leave some values out")
    return grid


def _values(flag: str, text: str) -> tuple[str, list[Any]]:
    name, _, listed = text.partition("=")
    key, values = name, list[Any]()
    for part in _COMMA.sub(lambda found: found[1] or "\0", listed).split("\0"):
        if not part.strip():
            raise ConfigError(f"{flag} {text!r}: has an empty value; write section.key=value,value")
        try:
            ((section, keys),) = overrides([f"{name}={part}"]).items()
        except ConfigError as error:
            raise ConfigError(str(error).replace("--set", flag, 1)) from error
        ((short, value),) = keys.items()
        if value in values:
            raise ConfigError(f"{flag} {text!r}: has {value!r} twice; to repeat a run, use --seeds")
        key = f"{section}.{short}"
        values.append(value)
    return key, values


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    settings: Mapping[str, Any]
    config: Config


def worded(settings: Mapping[str, Any]) -> str:
    """Settings in words; ``None`` is the default of a setting.

    Example:
        >>> worded({"privacy.clip_norm": 0.5, "training.engine": "flower", "data.path": None})
        'privacy.clip_norm = 0.5, training.engine = flower, data.path = default'
    """
    return ", ".join(f"{key} = {'default' if value is None else value}" for key, value in settings.items())


def cells_of(base: Layer, grid: Grid, here: Path = Path()) -> tuple[Cell, ...]:
    """All cells, in the order of the grid; relative paths of files begin ``here``.

    Example:
        >>> [cell.name for cell in cells_of({}, grid_of(["privacy.clip_norm=0.1,0.5"]))]
        ['1-clip_norm=0.1', '2-clip_norm=0.5']
    """
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cells: dict[Config, Cell] = {}
    for number, settings in enumerate(points, start=1):
        # Each run says that it is one of several.
        layer: Layer = {"training": {"sweep": len(points)}} if len(points) > 1 else {}
        for key, value in settings.items():
            section, _, name = key.partition(".")
            layer.setdefault(section, {})[name] = value
        if settings.get("data.partition", "dirichlet") != "dirichlet":
            # It is said for the other cells.
            layer["data"].setdefault("alpha", None)
        try:
            config = configs.absolute(configs.resolve(base, layer), here)
        except ConfigError as error:
            raise ConfigError(f"the cell {worded(settings)}: {error}") from error
        if config in cells:
            same = f"{worded(cells[config].settings)} and {worded(settings)}"
            raise ConfigError(f"--grid: {same} are the same run; leave one of the two values out")
        short = worded({key.partition(".")[2]: value for key, value in settings.items()}).replace(" = ", "=").replace(", ", ",")
        name = f"{number:0{len(str(len(points)))}d}-{_UNFIT.sub('-', short)[:_LONGEST_NAME]}"
        cells[config] = Cell(name, settings, config)
    if len(cells) > 1 and (origin := next((config.training.extends for config in cells if config.training.extends), None)):
        raise ConfigError(
            f"training.extends = {origin!r}: the privacy cost of each cell would have to count all others; sweep before you "
            "extend, or extend with one setting after the other ('hubbub extend')"
        )
    return tuple(cells.values())


def require_runnable(cells: Sequence[Cell], *, allow_import: bool = False) -> None:
    """Refuse cells that could not begin, before anything is trained or written; shared data are read once."""
    usual, clients = configs.TrainingConfig(), dict[Config, int]()
    for cell in cells:
        config = cell.config
        # The settings that decide data and model, the others at their defaults.
        training = replace(config.training, rounds=usual.rounds, evaluate_every=usual.evaluate_every)
        privacy = configs.PrivacyConfig(unit=config.privacy.unit, noise=config.privacy.noise)
        shared = Config(training=training, privacy=privacy, data=config.data, model=config.model)
        try:
            if shared not in clients:
                clients[shared] = len(client_side(shared, allow_import=allow_import).population.clients)
            planned(config, clients[shared], allow_import=allow_import)
            if config.training.nproc > 1:
                raise ConfigError(f"training.nproc = {config.training.nproc}: each run of a sweep has one process; say --jobs")
            require_engine(config)
            require_allowed(config, allow_import=allow_import)
            if config.secagg.scheme != "none":
                from hubbub.experiment.engine.parties import require_keys

                require_keys(build(config, allow_import=allow_import))
        except (HubbubError, ValueError, TypeError) as error:
            raise ConfigError(f"the cell {worded(cell.settings)}: {error}") from error


@dataclass(frozen=True)
class SweepRecord:
    """The description of a sweep, kept in its folder: the settings that all cells share, paths from ``here``, and the grid.

    ``source`` is the name of the config file, for people; ``version`` that of the library that began it.
    """

    source: str
    base: Layer
    grid: Grid
    here: str
    allow_import: bool = False
    version: str = __version__

    def as_json(self) -> dict[str, Any]:
        """Strict JSON values, with a digest of base, grid and folder."""
        grid = [[key, list(values)] for key, values in self.grid.items()]
        identity = {"base": self.base, "grid": grid, "here": self.here}
        return {
            **identity,
            "schema": _SCHEMA,
            "source": self.source,
            "allow_import": self.allow_import,
            "version": self.version,
            "digest": hashlib.sha256(strict_json.canonical(identity)).hexdigest(),
        }

    def cells(self) -> tuple[Cell, ...]:
        """All cells; see :func:`cells_of`."""
        return cells_of(self.base, self.grid, Path(self.here))


def begin(folder: Path, record: SweepRecord) -> None:
    """Make the folder of a sweep, or check that an existing one holds the same sweep."""
    if os.path.lexists(folder / RECORD):
        found = read_record(folder)
        if found.as_json()["digest"] != record.as_json()["digest"]:
            raise RunFolderError(f"{folder}: holds another sweep, of {found.source}; choose another folder with -o")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: exists and is no sweep ({RECORD} not there); choose another folder with -o")
    try:
        files.make_folder(folder)
        files.write_atomic(folder / RECORD, strict_json.canonical(record.as_json()))
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written ({error.strerror}); choose another folder with -o") from error


def read_record(folder: Path) -> SweepRecord:
    """The record in a sweep's folder."""
    path = folder / RECORD
    with files.refusing(path, "is no record of a sweep", "restore it, or start again in another folder"):
        found = strict_json.loads(files.read(path, at_most=_LARGEST))
        grid = {key: list(values) for key, values in found["grid"]}
        allow_import = found["allow_import"] is True
        record = SweepRecord(found["source"], found["base"], grid, str(found["here"]), allow_import, found["version"])
        if record.as_json() != found:
            raise ValueError("it was changed, or is of another version")
    return record


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep, so that no other process works on it."""
    try:
        with files.locked_folder(folder, wait=False):
            yield
    except BlockingIOError as error:
        raise RunFolderError(f"{folder}: another process is working on this sweep; wait for it") from error
