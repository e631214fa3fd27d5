"""Every family of strategies in two settings: the numbers and the pictures of docs/choosing-a-strategy.md.

Errors are computed, not taken from papers: of the strategy that hubbub makes, at sensitivity 1 to what one client may join, for
unit noise. Nothing is random; only the CPU seconds differ from run to run.

    OMP_NUM_THREADS=1 python examples/headlines/strategies.py            # some minutes of CPU time
    python examples/headlines/strategies.py --draw                       # tables and pictures again, from the numbers on disk
"""

import argparse
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hubbub import factorization
from hubbub.factorization import Optimized
from hubbub.factorization.families import Family, answer_of
from hubbub.mechanism import utility
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation
from hubbub.mechanism.strategies import Strategy, stamped
from hubbub.mechanism.workloads import Workload, prefix_sum

ROOT = Path(__file__).parent.parent.parent
PAGE, RESULTS, IMAGES = (ROOT / "docs" / part for part in ("choosing-a-strategy.md", "strategies.json", "images"))
BANDED = ("banded", "banded-toeplitz", "optimal-toeplitz", "normalized-toeplitz")
FAMILIES = ("identity", "tree", "tree-online", "tree-full", "fourier", *BANDED, "banded-inverse", "blt", "dense")
DRAWN = ("identity", "tree", "tree-full", "banded-inverse", "blt", "optimal-toeplitz", "banded", "time-varying", "dense")
# Of each curve in a picture, so many points are kept. A curve whose steps add up to more than JUMPS times its range, as of a
# tree, is drawn as its mean over a window of this share of the rounds.
POINTS, JUMPS, WINDOW = 250, 6.0, 1 / 16


def smoothed(curve: np.ndarray) -> np.ndarray:
    """The curve, or if it jumps its root mean square over a window of rounds, ``(rounds,)``."""
    if float(np.abs(np.diff(curve)).sum()) <= JUMPS * float(np.ptp(curve)):
        return curve
    half = max(1, round(len(curve) * WINDOW / 2))
    total = np.concatenate([[0.0], np.cumsum(np.square(curve))])
    first = np.maximum(np.arange(len(curve)) - half, 0)
    last = np.minimum(np.arange(len(curve)) + half + 1, len(curve))
    return np.sqrt((total[last] - total[first]) / (last - first))


@dataclass(frozen=True)
class Setting:
    """What the strategies are for; ``rotation`` is the same with rounds exactly as far apart."""

    workload: Workload
    participation: Participation
    rotation: FixedEpochs | None
    families: tuple[Family, ...]


# Of 2000 rounds and clients that come once, as many bands as published matrices have.
SETTINGS = {
    "once": Setting(
        prefix_sum(2000),
        SingleParticipation(),
        None,
        (*(Family(name, bands=400 if name in BANDED else None) for name in FAMILIES), Family("time-varying")),
    ),
    "separated": Setting(
        prefix_sum(2000), MinSeparation(100, 20), FixedEpochs(20, 100), tuple(Family(name) for name in FAMILIES[:-1])
    ),
}
SWEEPS = {
    "once": {
        "banded-inverse": (2, 3, 5, 9, 17, 33, 65, 129),
        "optimal-toeplitz": (2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025, 2000),
        "banded": (5, 17, 65, 129, 257, 513),
        "blt": (1, 2, 3, 4),
        "time-varying": (1, 2, 3, 4, 5, 6),
    },
    "separated": {
        "banded-inverse": (2, 3, 5, 9, 17, 33, 65),
        "optimal-toeplitz": (2, 3, 5, 9, 17, 33, 65, 100),
        "banded": (5, 17, 65, 100),
        "blt": (1, 2, 3),
    },
}

Row = dict[str, Any]


def rows_of(key: str) -> Iterator[tuple[str, Callable[[], Row]]]:
    """The rows of a setting's table by name, each with what computes it."""
    setting = SETTINGS[key]
    for family in setting.families:
        name = family.name if family.bands is None else f"{family.name}, {family.bands} bands"
        yield name, lambda family=family: measured(lambda: answer_of(family, setting.workload, setting.participation))
    if setting.rotation is not None:
        yield "dense, exactly 100 apart", lambda: measured(lambda: best_for_rotation(key))
        yield "the same, at least 100 apart", lambda: as_it_is(key, best_for_rotation(key).strategy)
    if key == "separated":
        yield "stamped, 20 times the best of 100 rounds", lambda: as_it_is(key, stamped_best())


@cache
def best_for_rotation(key: str) -> Optimized[Strategy]:
    setting = SETTINGS[key]
    return answer_of(Family("dense"), setting.workload, setting.rotation)


def stamped_best() -> Strategy:
    return stamped.stamp(factorization.dense.optimize(prefix_sum(100)).strategy, times=20)


def measured(make: Callable[[], Optimized[Strategy]]) -> Row:
    started = time.process_time()
    answer = make()
    seconds = time.process_time() - started
    sensitivity = answer.strategy.sensitivity(answer.participation)
    errors = utility.squared_errors(answer.workload, answer.strategy) * sensitivity.value**2
    return {
        "squared_error": answer.squared_error,
        "lower_bound": answer.lower_bound,
        "bound_family": answer.bound_family,
        "memory_rows": answer.strategy.memory_rows,
        "exact": sensitivity.exact,
        # What has a closed form takes no time that would be worth a number.
        "cpu_seconds": seconds if answer.iterations else None,
        "curve": [float(f"{value:.5g}") for value in smoothed(np.sqrt(errors))[points(len(errors))]],
    }


def as_it_is(key: str, strategy: Strategy) -> Row:
    """Of a strategy made for something else. What holds for rounds exactly so far apart bounds this from below, too."""
    workload, participation = SETTINGS[key].workload, SETTINGS[key].participation
    error = utility.mean_squared_error(workload, strategy) * strategy.sensitivity(participation).value ** 2
    bound = best_for_rotation(key).lower_bound
    return measured(lambda: Optimized(strategy, workload, participation, "mean", error, bound, "every strategy", 0))


def points(rounds: int) -> np.ndarray:
    return np.unique(np.linspace(0, rounds - 1, POINTS).astype(int))


def sweep(key: str, name: str) -> list[list[float]]:
    """Rows remembered and RMSE, for more and more of them."""
    setting = SETTINGS[key]
    found = []
    for size in SWEEPS[key][name]:
        knob = {"buffers" if name in ("blt", "time-varying") else "bands": size}
        answer = answer_of(Family(name, **knob), setting.workload, setting.participation)
        found.append([answer.strategy.memory_rows, answer.root_squared_error])
    # Where more buffers do not help, the same answer comes again.
    return [one for i, one in enumerate(found) if one not in found[:i]]


def compute(wanted: str) -> None:
    """Compute the rows and sweeps whose name contains this, and keep each as soon as it is known."""
    made = {f"{key} | {name}": row for key in SETTINGS for name, row in rows_of(key)}
    made |= {f"sweep | {key} | {name}": partial(sweep, key, name) for key in SWEEPS for name in SWEEPS[key]}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    curves = {row for key in SWEEPS for row in drawn(key).values()}
    for name, row in made.items():
        if wanted in name:
            results[name] = row()
            if isinstance(results[name], dict) and name not in curves:
                del results[name]["curve"]
            lines = [f"{json.dumps(known)}: {json.dumps(results[known])}" for known in made if known in results]
            RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(name, flush=True)


def table(key: str, results: dict[str, Any]) -> str:
    """The setting's rows in the order of their errors, as Markdown."""
    lines = [
        "| strategy | RMSE | squared error | lower bound | holds for | rows remembered | CPU s | sensitivity |",
        "|---|---:|---:|---:|---|---:|---:|---|",
    ]
    for name in sorted(rows(key), key=lambda name: results[f"{key} | {name}"]["squared_error"]):
        row = results[f"{key} | {name}"]
        seconds = (
            ""
            if row["cpu_seconds"] is None
            else f"{row['cpu_seconds']:.1g}"
            if row["cpu_seconds"] < 1
            else f"{row['cpu_seconds']:.0f}"
        )
        lines.append(
            f"| {name} | {rounded(math.sqrt(row['squared_error']), 5, ROUND_CEILING)} "
            f"| {rounded(row['squared_error'], 7, ROUND_CEILING)} | {rounded(row['lower_bound'], 7, ROUND_FLOOR)} "
            f"| {row['bound_family']} | {row['memory_rows']:,} | {seconds} "
            f"| {'exact' if row['exact'] else 'bound'} |"
        )
    return "\n".join(lines)


def rounded(value: float, digits: int, way: str) -> str:
    """An error upwards, a bound downwards: no digit claims more than was computed."""
    exact = Decimal(value)
    return str(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), rounding=way))


def with_tables(page: str, results: dict[str, Any]) -> str:
    """The page with its tables as the results say."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}\n{table(found[2], results)}\n{found[4]}"

    return re.sub(r"(<!-- table: (\w+) -->)\n(.*?)(<!-- end -->)", replaced, page, flags=re.DOTALL)


def rows(key: str) -> list[str]:
    return [name for name, _ in rows_of(key)]


def drawn(key: str) -> dict[str, str]:
    """The families in the pictures, and the names of their rows."""
    named = {name: f"{key} | {row_named(key, name)}" for name in DRAWN}
    return {name: row for name, row in named.items() if row.removeprefix(f"{key} | ") in rows(key)}


def row_named(key: str, name: str) -> str:
    if name == "dense" and SETTINGS[key].rotation is not None:
        return "dense, exactly 100 apart"
    return f"{name}, 400 bands" if key == "once" and name in BANDED else name


def draw(results: dict[str, Any]) -> None:
    from strategies_pictures import draw_errors, draw_memory

    rounds = points(2000) + 1
    draw_errors(
        IMAGES / "strategies_errors.png",
        {key: (rounds, {name: results[row]["curve"] for name, row in drawn(key).items()}) for key in SWEEPS},
    )
    memory = {}
    for key, sweeps in SWEEPS.items():
        curves = {name: results[f"sweep | {key} | {name}"] for name in sweeps}
        for name, row in drawn(key).items():
            curves.setdefault(name, [[results[row]["memory_rows"], math.sqrt(results[row]["squared_error"])]])
        memory[key] = (curves, math.sqrt(results[drawn(key)["dense"]]["lower_bound"]))
    draw_memory(IMAGES / "strategies_memory.png", memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="compute what has this in its name, and keep the rest")
    parser.add_argument("--draw", action="store_true", help="compute nothing: tables and pictures of the numbers on disk")
    arguments = parser.parse_args()
    if not arguments.draw:
        compute(arguments.only)
    results = json.loads(RESULTS.read_text())
    PAGE.write_text(with_tables(PAGE.read_text(), results))
    draw(results)


if __name__ == "__main__":
    main()
