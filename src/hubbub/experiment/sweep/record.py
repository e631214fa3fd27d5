"""A sweep's folder: ``sweep.json``, by which it resumes as it began and no other is mixed with it, and what came of its cells.

All results of a sweep together are a composition: its epsilon covers whatever is published of them, also the best model alone,
for a grid that was fixed beforehand. Less is known to be enough only if the number of trials is random
(:mod:`hubbub.accounting.selection`), which a grid is not: that is stated as what it would have been, never as a guarantee.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubbub import __version__
from hubbub._util import files, strict_json
from hubbub.accounting import PrivacyGuarantee
from hubbub.accounting.runs import RunCharge, events_of
from hubbub.accounting.selection import selection_epsilon
from hubbub.errors import ConfigError, HubbubError, LedgerError, RunFolderError
from hubbub.experiment.config import Config, Layer
from hubbub.experiment.sweep.grid import Axis, Cell, Grid
from hubbub.experiment.sweep.work import Scores, read_scores
from hubbub.ledger.actual_cost import spent
from hubbub.ledger.multi_run import Recorded, compose_runs, run_charges
from hubbub.report.sweep_summary import CellSummary, Choice, PointSummary, SweepSummary
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import Traces, read_run

__all__ = [
    "CELLS",
    "RECORD",
    "Known",
    "SweepRecord",
    "begin",
    "choice",
    "is_finished",
    "locked",
    "marked",
    "read_record",
    "sweep_summary",
]

# Of a sweep's folder: what it is of, and where its runs are.
RECORD, CELLS = "sweep.json", "cells"
_SCHEMA = 1
_LARGEST = 2**24


@dataclass(frozen=True)
class SweepRecord:
    """What a sweep is of.

    Args:
        source: The name of the config file, for people.
        base: The settings that all cells have in common, files by their whole names.
        grid: What they differ in.
        allow_import: Whether names of code in the settings may be imported.
        version: Of the library that began it.
    """

    source: str
    base: Layer
    grid: Grid
    allow_import: bool = False
    version: str = __version__

    def as_json(self) -> dict[str, Any]:
        """It as strict JSON values, with the digest by which it is known."""
        found = {"base": self.base, "grid": [[axis.key, list(axis.values)] for axis in self.grid.axes]}
        return {
            **found,
            "schema": _SCHEMA,
            "source": self.source,
            "allow_import": self.allow_import,
            "version": self.version,
            "digest": hashlib.sha256(strict_json.canonical(found)).hexdigest(),
        }


def begin(folder: Path, record: SweepRecord) -> None:
    """Make the folder of a sweep, or see that it is of the same one.

    Raises:
        RunFolderError: It holds another sweep, or something else.
    """
    if os.path.lexists(folder / RECORD):
        found, wanted = read_record(folder).as_json(), record.as_json()
        if found["digest"] != wanted["digest"]:
            what = "grid" if found["base"] == wanted["base"] else "settings"
            raise RunFolderError(
                f"{folder}: holds another sweep, of {found['source']} with other {what}; choose another folder with -o, or "
                f"resume that one: hubbub sweep {folder}"
            )
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder}: exists and is no sweep ({RECORD} not there); choose another folder with -o")
    try:
        files.make_folder(folder)
        files.write_atomic(folder / RECORD, strict_json.canonical(record.as_json()))
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written ({error.strerror}); choose another folder with -o") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a sweep for as long as this one is at work.

    Raises:
        RunFolderError: Another one is.
    """
    path = folder / "lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunFolderError(f"{folder}: another process is at work on this sweep; wait for it") from error
        yield
    finally:
        os.close(lock)


def read_record(folder: Path) -> SweepRecord:
    """The record of a sweep's folder.

    Raises:
        RunFolderError: It is none, or its record was changed.
    """
    path = folder / RECORD
    try:
        found = strict_json.loads(files.read(path, at_most=_LARGEST))
        if found["schema"] != _SCHEMA:
            raise ValueError(f"schema {found['schema']!r} is not known to this version, which knows {_SCHEMA}")
        record = _from_json(found)
        if record.as_json()["digest"] != found["digest"]:
            raise ValueError("it was changed")
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); name a config file and --grid, or the folder of a sweep"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            f"{path}: is no record of a sweep ({error}); restore it, or start anew in another folder"
        ) from error
    return record


def _from_json(found: Mapping[str, Any]) -> SweepRecord:
    axes = tuple(Axis(key, tuple(values)) for key, values in found["grid"])
    base = {section: dict(keys) for section, keys in found["base"].items()}
    if not isinstance(found["allow_import"], bool):
        raise TypeError(f"allow_import = {found['allow_import']!r}")
    return SweepRecord(str(found["source"]), base, Grid(axes), found["allow_import"], str(found["version"]))


_LAWS = {
    "logarithmic": "logarithmic number of trials, {mean} on average",
    "geometric": "geometric number of trials, {mean} on average",
    "poisson": "Poisson number of trials, {mean} on average (with none, nothing is published)",
}
_FIXED = "the grid was fixed before the first run, and no cell was added or left out because of what another released"
_ALL = "no run of it was deleted, and no other run over the same people had a part in the choice: what they cost is not in it"


@dataclass(frozen=True)
class Known:
    """A run that has begun: its settings, and its record, or ``None`` where that cannot be read."""

    name: str
    config: Config
    recorded: Recorded | None


def choice(runs: Sequence[Known]) -> Choice:
    """What publishing anything of these runs costs, chosen by looking at all of them."""
    if not runs:
        return Choice(0, None, None, "Nothing has been released yet.")

    def unknown(why: str, epsilon: float | None = None, delta: float | None = None) -> Choice:
        return Choice(len(runs), epsilon, delta, why, (), why, *_standing(runs))

    if lost := [run.name for run in runs if run.recorded is None]:
        return unknown(
            f"Not stated: the ledger of {', '.join(lost[:3])} cannot be read, and what that run has cost is not known."
        )
    recorded = [run.recorded for run in runs if run.recorded is not None]
    delta = min(run.promise.delta for run in recorded)
    try:
        charges = run_charges(recorded)
        together = compose_runs(charges, delta)
    except (ConfigError, LedgerError) as error:
        return unknown(f"Not stated: {error}.")
    if not together.private:
        why = f"No bound: {together.mechanism}, and a model that was trained without noise is hidden by nothing."
        return unknown(why, together.epsilon, delta)
    trials, why = _trials(charges[: len(recorded)], charges[len(recorded) :], together, held_out=_held_out(runs))
    return Choice(len(runs), together.epsilon, delta, together.sentence(), trials, why, *_standing(runs))


def _trials(
    candidates: Sequence[RunCharge], before: Sequence[RunCharge], together: PrivacyGuarantee, *, held_out: bool
) -> tuple[tuple[tuple[str, float], ...], str]:
    """What publishing the best of a random number of trials would cost; or why that is not known."""
    if held_out:
        return (), "The runs are judged by held-out clients' data without noise, for which no such bound holds."
    if before:
        return (), f"These runs state {len(before)} earlier ones with their own, for which the theorems have no room."
    mean = len(candidates)
    events = [events_of([run]) or () for run in candidates]
    found = []
    for law, words in _LAWS.items():
        try:
            epsilon = selection_epsilon(events, mean, together.delta, together.neighboring_relation, law=law)
        except ValueError as error:
            return (), f"Not known for these runs: {error}."
        found.append((words.format(mean=mean), epsilon))
    return tuple(found), ""


def _held_out(runs: Sequence[Known]) -> bool:
    return any(run.config.training.validation for run in runs)


def _standing(runs: Sequence[Known]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What must hold for what is stated, and what it does not cover."""
    assumptions = [_FIXED, _ALL, "each run's own assumptions hold, as its report names them"]
    warnings = []
    if _held_out(runs):
        warnings.append(
            "Accuracy and loss are of held-out training examples, without noise: they are private, and no epsilon here covers "
            "them, nor a choice that was made by them."
        )
    else:
        assumptions.append("the test examples are public, and nobody's whom the guarantee is to protect")
    if len({_dealing(run.config) for run in runs}) > 1:
        warnings.append(
            "The data are dealt to clients anew by the seed or other settings of the grid, so that a client of one run is not "
            "the same in another. What is stated of all runs is of people who are one and the same client in each; for the "
            "examples of a simulation, which wander between clients, no bound is known."
        )
    if any(run.recorded is not None and run.recorded.rounds_left for run in runs):
        warnings.append("Runs that were interrupted count as far as they went; what they still do adds to it.")
    return tuple(assumptions), tuple(warnings)


def _dealing(config: Config) -> tuple[object, ...]:
    """What decides which examples are whose."""
    data, seed = config.data, config.training.seed
    if config.privacy.unit == "example" or data.partition == "user":
        return (data.name, data.path)
    alpha = data.alpha if data.partition == "dirichlet" else None
    return (data.name, data.path, data.partition, data.clients, alpha, seed, config.training.validation)


def sweep_summary(
    folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str] | None = None
) -> SweepSummary:
    """The sweep as it stands.

    Args:
        folder: Of the sweep.
        record: What it is of.
        cells: All of them.
        errors: Of cells that have failed, by name.
    """
    points: list[tuple[tuple[Any, ...], list[CellSummary]]] = []
    runs: list[Known] = []
    for cell in cells:
        summary, known = _found(folder / CELLS / cell.name, cell, (errors or {}).get(cell.name, ""))
        runs += [known] if known else []
        # Values of a grid may be lists, which no dictionary takes as keys.
        same = next((cells_of for values, cells_of in points if values == cell.point), None)
        if same is None:
            points.append((cell.point, [summary]))
        else:
            same.append(summary)
    return SweepSummary(
        name=folder.resolve().name,
        source=record.source,
        axes=tuple((axis.key, axis.values) for axis in record.grid.shown),
        seeds=len(cells) // len(points),
        points=marked([PointSummary(values, tuple(summaries)) for values, summaries in points]),
        choice=choice(runs),
        held_out=any(cell.config.training.validation for cell in cells),
        simulation=any(cell.config.privacy.noise == "simulation" for cell in cells),
        unit=cells[0].config.privacy.unit,
        version=record.version,
    )


def is_finished(folder: Path) -> bool:
    """Whether a cell's run is over and was measured as it is now.

    Raises:
        HubbubError: Its record or its scores cannot be read.
    """
    if not (folder / "ledger.jsonl").exists():
        return False
    recorded = read_run(folder)
    return _current(recorded, read_scores(folder)) is not None


def marked(points: Sequence[PointSummary]) -> tuple[PointSummary, ...]:
    """The points with the best one marked, and those that no other beats in accuracy at as small an epsilon."""
    # Mean accuracy and epsilon of each point all of whose runs are finished.
    ranks = [
        None if point.accuracy is None or point.epsilon is None or not point.finished else (point.accuracy.mean, point.epsilon)
        for point in points
    ]
    known = [rank for rank in ranks if rank is not None]
    # What another beats is nowhere better than it, and somewhere worse.
    beaten = {one for one in known if any(a >= one[0] and b <= one[1] and (a, b) != one for a, b in known)}
    best = ranks.index(max(known, key=lambda rank: (rank[0], -rank[1]))) if known else None
    return tuple(
        replace(point, best=number == best, frontier=rank is not None and rank not in beaten)
        for number, (point, rank) in enumerate(zip(points, ranks, strict=True))
    )


def _found(folder: Path, cell: Cell, error: str) -> tuple[CellSummary, Known | None]:
    summary = CellSummary(cell.name, cell.settings, "failed" if error else "waiting", error=error)
    try:
        if not (folder / "ledger.jsonl").exists() and not Traces.of(RunStore(folder)).tell:
            return summary, None
        recorded = read_run(folder)
        guarantee = spent(recorded.promise, recorded.history).guarantee
        scores = _current(recorded, read_scores(folder))
    except (HubbubError, OSError) as problem:
        broken = replace(summary, state="failed", error=error or str(problem))
        return broken, Known(cell.name, cell.config, None)
    known = Known(cell.name, cell.config, recorded)
    summary = replace(summary, rounds=len(recorded.history.rounds), epsilon=guarantee.epsilon, delta=guarantee.delta)
    if error:
        return summary, known
    if scores is None:
        return replace(summary, state="interrupted"), known
    measured = replace(
        summary, state="finished", accuracy=scores.accuracy, loss=scores.loss, train_accuracy=scores.train_accuracy
    )
    return measured, known


def _current(recorded: Recorded, scores: Scores | None) -> Scores | None:
    """The scores of a run that is over, where they are of its last round."""
    if scores is None or recorded.rounds_left:
        return None
    chain = recorded.chain
    return scores if chain.rounds_at(scores.head) == chain.rounds_at(chain.head) else None
