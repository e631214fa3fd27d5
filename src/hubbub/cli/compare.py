"""``hubbub compare``: the strategies for one setting, side by side."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from rich.table import Table

from hubbub import families, files
from hubbub._checks import Array, one_of
from hubbub.cli.output import console, print_json, print_whole, printable, say
from hubbub.cli.setting import MOST_DENSE, Setting, require_output, root_errors
from hubbub.errors import ConfigError, HubbubError
from hubbub.factorization import Optimized
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.optimized import Objective
from hubbub.families import BY_MATRIX, DESCRIPTIONS, Family
from hubbub.strategies import Strategy
from hubbub.strategies.strategy import memory_rows

__all__ = ["Knobs", "compare"]

_LONGEST = 300


@dataclass(frozen=True)
class Knobs:
    """What families leave open; a family that does not have one of them is not asked for it."""

    bands: int | None
    buffers: int | None
    objective: Objective

    def family(self, name: str) -> Family:
        """The family with those of these that it has."""
        family = Family(name)
        for key in ("bands", "buffers", "objective"):
            try:
                family = Family(name, **{**_given(family), key: getattr(self, key)})
            except ConfigError:
                continue
        return family


@dataclass(frozen=True, eq=False)
class Compared:
    """One strategy; errors are at sensitivity 1, and of each round where there are not too many."""

    name: str
    answer: Optimized[Strategy]
    roots: Array | None
    cpu_seconds: float
    exact: bool

    def root(self, objective: str) -> float | None:
        """The root of the mean or of the largest squared error."""
        if self.roots is not None:
            return math.sqrt(float((self.roots**2).mean())) if objective == "mean" else float(self.roots.max())
        return self.answer.root_squared_error if objective == self.answer.objective else None


def compare(setting: Setting, knobs: Knobs, names: str | None, *, plot: Path | None, as_json: bool) -> None:
    """Compute the strategies, print a table of them in the order of their errors, and draw these.

    Args:
        setting: What for.
        knobs: Of the families.
        names: Families by name, with commas; ``None`` for all.
        plot: Where to draw.
        as_json: Print one JSON object instead.

    Raises:
        ConfigError: No family does this.
    """
    rounds = setting.workload.rounds
    one_of("objective", knobs.objective, ("mean", "max"))
    asked = [one_of("--families", name.strip(), _known()) for name in names.split(",")] if names is not None else _known()
    require_output("--plot", plot, ".png")
    if plot is not None and rounds > MOST_DENSE:
        raise ConfigError(f"--plot {plot}: draws each round, of at most {MOST_DENSE:,}, not {rounds:,}; leave it out")
    found, left_out = _computed(setting, knobs, list(dict.fromkeys(asked)))
    if not found:
        name, reason = next(iter(left_out.items()))
        raise ConfigError(f"--families: none of them does this; {name}: {reason}")
    bound = _bound(setting, knobs.objective, found)
    found.sort(key=lambda one: one.root(knobs.objective) or math.inf)
    if plot is not None:
        files.write_atomic(plot, _picture(setting, found), mode=0o644)
    if as_json:
        rows = [_facts(one, found[0], bound, knobs.objective) for one in found]
        shared = {"objective": knobs.objective, "root_lower_bound": bound, "plot": None if plot is None else str(plot)}
        print_json({**setting.as_json(), **shared, "strategies": rows, "left_out": left_out})
    else:
        _print(setting, knobs.objective, found, bound, left_out)


def _known() -> list[str]:
    return [name for name in DESCRIPTIONS if name != "file"]


def _given(family: Family) -> dict[str, Any]:
    return {key: getattr(family, key) for key in ("bands", "buffers", "objective")}


def _computed(setting: Setting, knobs: Knobs, names: Sequence[str]) -> tuple[list[Compared], dict[str, str]]:
    """The strategies, and of the families that have none here the reason."""
    found: list[Compared] = []
    left_out: dict[str, str] = {}
    with console(stderr=True).status("…") as status:
        for name in names:
            family = knobs.family(name)
            status.update(f"{name}, {setting.workload.rounds:,} rounds …")
            try:
                found.append(_one(setting, family))
            except (HubbubError, ValueError) as error:
                left_out[name] = printable(" ".join(str(error).split()), _LONGEST)
    return found, left_out


def _one(setting: Setting, family: Family) -> Compared:
    many = setting.workload.rounds > MOST_DENSE
    if many and family.name in BY_MATRIX:
        raise ValueError(f"its error is computed from its matrix, for at most {MOST_DENSE:,} rounds")
    started = time.process_time()
    answer = families.answer_of(family, setting.workload, setting.participation)
    seconds = time.process_time() - started
    sensitivity = answer.strategy.sensitivity(setting.participation)
    roots = None if many else root_errors(setting, answer.strategy, sensitivity.value)
    return Compared(family.name, answer, roots, seconds, sensitivity.exact)


def _bound(setting: Setting, objective: Objective, found: Sequence[Compared]) -> float:
    """The root of the best bound that holds for every strategy: that of the room, or what an answer proved."""
    proved = [one.answer for one in found if one.answer.bound_family == "every strategy" and one.answer.objective == objective]
    quick = lower_bound(setting.workload, setting.participation, objective)
    return math.sqrt(max([quick, *(answer.lower_bound for answer in proved)]))


def _facts(one: Compared, best: Compared, bound: float, objective: Objective) -> dict[str, Any]:
    error, least = one.root(objective), best.root(objective)
    return {
        "family": one.name,
        "root_mean_squared_error": one.root("mean"),
        "root_max_squared_error": one.root("max"),
        "relative_to_best": None if error is None or least is None else error / least,
        "relative_to_bound": None if error is None else error / bound,
        "sensitivity_exact": one.exact,
        "memory_rows": memory_rows(one.answer.strategy),
        "cpu_seconds": one.cpu_seconds,
    }


_TABLE = 90


def _print(setting: Setting, objective: Objective, found: Sequence[Compared], bound: float, left_out: dict[str, str]) -> None:
    screen = console()
    words = setting.words()
    say(screen, f"{words['rounds']} rounds of {words['workload']}; {words['participation']}")
    # Rounded down: what is shown is still proved.
    least = f"{Decimal(bound).quantize(Decimal(1).scaleb(Decimal(bound).adjusted() - 5), rounding=ROUND_FLOOR):f}"
    say(
        screen,
        f"No matrix C, with any decoder, has a root squared error below {least} ({objective} over rounds, at L2 sensitivity 1 "
        "to the rounds that one client may join).",
    )
    say(screen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("strategy", no_wrap=True)
    for column in ("RMSE", "largest", "over best", "over bound", "rows kept", "CPU s"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        facts = _facts(one, found[0], bound, objective)
        table.add_row(
            one.name,
            _number(facts["root_mean_squared_error"], one.exact),
            _number(facts["root_max_squared_error"], one.exact),
            _excess(facts["relative_to_best"]),
            _excess(facts["relative_to_bound"]),
            "unknown" if facts["memory_rows"] is None else f"{facts['memory_rows']:,}",
            f"{one.cpu_seconds:.2f}",
        )
    print_whole(table, _TABLE)
    if not all(one.exact for one in found):
        say(screen, "≤: the sensitivity is a bound from above, and so is the error.")
    if left_out:
        say(screen)
        say(screen, "Left out:")
        for name, reason in left_out.items():
            say(screen, f"  {name}: {reason}", indent=4)


def _number(value: float | None, exact: bool) -> str:
    return "-" if value is None else f"{'' if exact else '≤ '}{value:.5g}"


def _excess(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "best" if ratio == 1 else f"+{100 * (ratio - 1):.2f} %" if ratio < 2 else f"{ratio:.1f}×"


def _picture(setting: Setting, found: Sequence[Compared]) -> bytes:
    # Drawing costs a second to import.
    from hubbub.report.errors import draw_errors

    words = setting.words()
    curves = {one.name: one.roots for one in found if one.roots is not None}
    subtitle = f"{words['rounds']} rounds of {words['workload']}; {words['participation']}"
    return draw_errors("Error of each strategy", subtitle, curves)
