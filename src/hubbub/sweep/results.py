"""What a sweep's folder says: the state of each cell, what it scored and cost, and which points are worth a look."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hubbub.accounting.actual_cost import spent
from hubbub.accounting.multi_run import Recorded
from hubbub.errors import HubbubError
from hubbub.report.sweep_told import CellTold, PointTold, SweepTold
from hubbub.sweep.cells import Cell
from hubbub.sweep.choice import Known, choice
from hubbub.sweep.record import SweepRecord
from hubbub.sweep.work import Scores, read_scores
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import Traces, read_run

__all__ = ["CELLS", "csv_of", "is_finished", "marked", "sweep_told"]

# Of a sweep's folder, where its runs are.
CELLS = "cells"


@dataclass(frozen=True)
class _Found:
    told: CellTold
    known: Known | None


def sweep_told(folder: Path, record: SweepRecord, cells: Sequence[Cell], errors: Mapping[str, str] | None = None) -> SweepTold:
    """The sweep as it stands.

    Args:
        folder: Of the sweep.
        record: What it is of.
        cells: All of them.
        errors: Of cells that have failed, by name.
    """
    found = [_found(folder / CELLS / cell.name, cell, (errors or {}).get(cell.name, "")) for cell in cells]
    points: dict[int, list[CellTold]] = {}
    places = _places(cells)
    for place, one in zip(places, found, strict=True):
        points.setdefault(place, []).append(one.told)
    values = {place: cell.point for place, cell in zip(places, cells, strict=True)}
    return SweepTold(
        name=folder.resolve().name,
        source=record.source,
        axes=tuple((axis.key, axis.values) for axis in record.grid.shown),
        seeds=len(cells) // len(points),
        points=marked([PointTold(values[place], tuple(runs)) for place, runs in points.items()]),
        choice=choice([one.known for one in found if one.known is not None]),
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


def marked(points: Sequence[PointTold]) -> tuple[PointTold, ...]:
    """The points with the best one marked, and those that no other beats in accuracy at as small an epsilon."""
    ranks = [_rank(point) for point in points]
    known = [rank for rank in ranks if rank is not None]
    best = ranks.index(max(known, key=lambda rank: (rank[0], -rank[1]))) if known else None
    return tuple(
        replace(point, best=number == best, frontier=rank is not None and not any(_beats(other, rank) for other in known))
        for number, (point, rank) in enumerate(zip(points, ranks, strict=True))
    )


def _rank(point: PointTold) -> tuple[float, float] | None:
    """Mean accuracy and epsilon of a point all of whose runs are finished."""
    if not point.finished or point.accuracy is None or point.epsilon is None:
        return None
    return point.accuracy.mean, point.epsilon


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether it is nowhere worse and somewhere better."""
    return one[0] >= other[0] and one[1] <= other[1] and one != other


def csv_of(sweep: SweepTold) -> str:
    """All runs as a table with commas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sweep.rows())
    return text.getvalue()


def _places(cells: Iterable[Cell]) -> list[int]:
    """For each cell the number of its point, in the order of the first cell of each."""
    known: list[tuple[object, ...]] = []
    places = []
    for cell in cells:
        if cell.point not in known:
            known.append(cell.point)
        places.append(known.index(cell.point))
    return places


def _found(folder: Path, cell: Cell, error: str) -> _Found:
    told = CellTold(cell.name, cell.settings, "failed" if error else "waiting", error=error)
    try:
        if not (folder / "ledger.jsonl").exists() and not Traces.of(RunStore(folder)).tell:
            return _Found(told, None)
        recorded = read_run(folder)
        guarantee = spent(recorded.promise, recorded.history).guarantee
        scores = _current(recorded, read_scores(folder))
    except (HubbubError, OSError) as problem:
        broken = replace(told, state="failed", error=error or str(problem))
        return _Found(broken, Known(cell.name, cell.config, None))
    known = Known(cell.name, cell.config, recorded)
    told = replace(told, rounds=len(recorded.history.rounds), epsilon=guarantee.epsilon, delta=guarantee.delta)
    if error:
        return _Found(told, known)
    if scores is None:
        return _Found(replace(told, state="interrupted"), known)
    measured = replace(told, state="finished", accuracy=scores.accuracy, loss=scores.loss, train_accuracy=scores.train_accuracy)
    return _Found(measured, known)


def _current(recorded: Recorded, scores: Scores | None) -> Scores | None:
    """The scores of a run that is over, where they are of its last round."""
    if scores is None or recorded.rounds_left:
        return None
    chain = recorded.chain
    return scores if chain.rounds_at(scores.head) == chain.rounds_at(chain.head) else None
