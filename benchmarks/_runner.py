"""What the scripts share: the arguments, the clocks, and the table.

Costs are CPU seconds on one thread, so that other work on the machine does not count: of this process, or of one that a
side has for itself.
"""

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

# How long a row may be repeated, in CPU seconds.
QUICK, FULL = 3.0, 15.0
# One thread, whatever a side computes with; read when it is imported.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        name: What is computed, and by whom else.
        ours: What it costs us, above 0.
        peer: What it costs the peer.
        goal: The least ratio of the two, peer over ours, that was promised; ``None`` where none was.
        unit: Of both costs.
        projected: Whether the peer's cost was extrapolated from a smaller problem.
        good: Whether our answer is as good as was promised: a row of a worse answer is not met, however cheap.
        note: What both answers are worth, and how a cost was projected.
    """

    name: str
    ours: float
    peer: float
    goal: float | None
    unit: str = "CPU seconds"
    projected: bool = False
    good: bool = True
    note: str = ""

    @property
    def ratio(self) -> float:
        """How many times cheaper ours is."""
        return self.peer / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the goal with an answer as good as promised; ``None`` for such an answer without a goal."""
        if not self.good:
            return False
        return None if self.goal is None else self.ratio >= self.goal

    def as_json(self) -> dict[str, object]:
        """All fields as strict JSON values."""
        return {
            "name": self.name,
            "ours": self.ours,
            "peer": self.peer,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal": self.goal,
            "met": self.met,
            "projected": self.projected,
            "good": self.good,
            "note": self.note,
        }


@dataclass(frozen=True)
class Skipped:
    """A comparison that cannot be made here.

    Args:
        name: As of a :class:`Row`.
        reason: Why not, and what would help.
    """

    name: str
    reason: str

    def as_json(self) -> dict[str, object]:
        """All fields as strict JSON values."""
        return {"name": self.name, "skipped": self.reason}


@dataclass(frozen=True)
class Measurement:
    """The least CPU seconds that a call took, and the last answer, for each side."""

    ours: float
    peer: float
    our_answer: npt.ArrayLike
    peer_answer: npt.ArrayLike


@dataclass(frozen=True)
class Spent(Generic[Answer]):
    """What one call cost in a process of its own: CPU seconds of all its threads, and the most memory the process had."""

    seconds: float
    peak_bytes: int
    answer: Answer


def alone(prepare: Callable[[], Callable[[], Answer]]) -> Spent[Answer]:
    """Call what ``prepare()`` returns in a fresh process, on one thread of one core.

    ``prepare`` imports what the call needs, which costs memory but no seconds; what the call itself compiles does cost. It
    must be a function of a module, or a ``partial`` of one.
    """
    os.environ.update(_ONE_THREAD)
    # Started anew, not forked: threads, memory and modules of this process must not count.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_spend, prepare).result()


def _spend(prepare: Callable[[], Callable[[], Answer]]) -> Spent[Answer]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    call = prepare()
    begin = time.process_time()
    answer = call()
    return Spent(time.process_time() - begin, _peak_bytes(), answer)


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage says includes the process that started this one.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(peak.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(ours: Callable[[], npt.ArrayLike], peer: Callable[[], npt.ArrayLike], seconds: float) -> Measurement:
    """Call both in turn, at least once, until they have used ``seconds`` CPU seconds."""
    our_best = peer_best = math.inf
    stop = time.process_time() + seconds
    with threadpool_limits(1):
        while math.isinf(our_best) or time.process_time() < stop:
            begin = time.process_time()
            our_answer = ours()
            between = time.process_time()
            peer_answer = peer()
            our_best = min(our_best, between - begin)
            peer_best = min(peer_best, time.process_time() - between)
    return Measurement(our_best, peer_best, our_answer, peer_answer)


def compare(
    name: str,
    ours: Callable[[], npt.ArrayLike],
    peer: Callable[[], npt.ArrayLike],
    *,
    seconds: float,
    tolerance: float,
    goal: float,
) -> Row:
    """The row of two calls that must agree: :func:`measure`, then :func:`require_agreement`."""
    measured = measure(ours, peer, seconds)
    require_agreement(name, measured.our_answer, measured.peer_answer, tolerance)
    return Row(name, measured.ours, measured.peer, goal)


def require_agreement(name: str, ours: npt.ArrayLike, peer: npt.ArrayLike, tolerance: float) -> None:
    """Stop with an error unless the answers are as near as ``tolerance``, relative to the peer's norm.

    Raises:
        SystemExit: They are not: a faster wrong answer is no gain.
    """
    a, b = np.atleast_1d(ours), np.atleast_1d(peer)
    if not np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b):
        raise SystemExit(f"{name}: ours gives {ours}, the peer {peer}: must agree to {tolerance:g}, relatively")


def main(
    description: str | None,
    *parts: Callable[[float], Sequence[Row | Skipped]],
    options: argparse.ArgumentParser | None = None,
) -> NoReturn:
    """Run a script: print its rows and exit with status 1 where a goal is missed.

    Args:
        description: The script's docstring.
        parts: Measure; each takes the CPU seconds that a row may be repeated. ``--only`` picks them by their names.
        options: The script's own, made with ``add_help=False``.
    """
    named = {part.__name__.removesuffix("_rows"): part for part in parts}
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[options] if options else []
    )
    parser.add_argument("--quick", action="store_true", help="repeat less")
    parser.add_argument("--json", action="store_true", help="print one JSON list of rows")
    if len(named) > 1:
        parser.add_argument("--only", action="append", choices=list(named), help="measure this part; may be repeated")
    chosen = parser.parse_args()
    measured: list[Row | Skipped] = []
    for name in getattr(chosen, "only", None) or named:
        measured += named[name](QUICK if chosen.quick else FULL)
    rows = [row for row in measured if isinstance(row, Row)]
    if chosen.json:
        print(json.dumps([row.as_json() for row in measured], indent=2, allow_nan=False))
    else:
        print(_table(rows))
        print("".join(f"\n{row.name}: not measured: {row.reason}" for row in measured if isinstance(row, Skipped)))
    sys.exit(1 if any(row.met is False for row in rows) else 0)


def _table(rows: list[Row]) -> str:
    lines = [("row", "ours", "peer", "unit", "ratio", "goal", "met", "projected")]
    for row in rows:
        costs = f"{row.ours:.3g}", f"{row.peer:.3g}", row.unit, f"{row.ratio:.4g}"
        goal, met = "-" if row.goal is None else f"{row.goal:g}", "-" if row.met is None else _word(row.met)
        lines.append((row.name, *costs, goal, met, _word(row.projected)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*table, *([""] if notes else []), *notes])


def _word(true: bool) -> str:
    return "yes" if true else "no"
