"""The part of ``hubbub plan`` that shows a run's neighbours, and which of them to take."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hubbub import files, prospect
from hubbub.accounting import rounded_up
from hubbub.alternatives import Neighbour, Neighbourhood, neighbours, recommended
from hubbub.alternatives import assignments as flags_of
from hubbub.cli.output import console, print_columns, printable, say
from hubbub.config import Config
from hubbub.errors import ConfigError
from hubbub.training.plan import RunPlan

__all__ = ["Found", "Wanted", "draw", "found", "show", "size"]

_TABLE, _LONGEST = 110, 300
# What an error is, for people.
WHAT = "standard deviation of the noise in a coordinate of the model, over rounds, in clip norms and for steps of size 1"
# Of the rounds, for a curve.
_PARTS = 24
# Below it nobody needs to ask how much memory there is.
_LARGE = 2**30


@dataclass(frozen=True)
class Wanted:
    """Which neighbours are asked for, and where to draw them."""

    thorough: bool
    plot: Path | None


@dataclass(frozen=True, eq=False)
class Found:
    """A run's neighbours, the one to take and why; ``instead`` is what other cohorts would give, where that is better."""

    among: Neighbourhood
    parameters: int | None
    best: Neighbour | None
    why: str
    instead: Neighbour | None

    def as_json(self, file: Path, assignments: Sequence[str]) -> dict[str, Any]:
        """As entries of a JSON object."""
        best = None
        if self.best is not None:
            best = {"set": flags_of(self.best.changes), "command": command(self.best, file, assignments)}
        return {
            "neighbours": [self.facts(one) for one in self.among.options],
            "recommended": best,
            "why": self.why,
            "left_out": dict(self.among.left_out),
        }

    def facts(self, one: Neighbour) -> dict[str, Any]:
        """A neighbour by numbers."""
        rows = one.memory_rows
        return {
            "strategy": one.strategy,
            "name": one.name,
            "sampling": one.cohorts,
            "noise_multiplier": one.noise_multiplier,
            "epsilon": one.epsilon,
            "error": one.error,
            "relative_to_own": one.error / self.among.own.error if self.among.own else None,
            "memory_rows": rows,
            "memory_bytes": _bytes(one, self.parameters),
            "cpu_seconds": one.cpu_seconds,
            "set": flags_of(one.changes),
            "recommended": one is self.best,
        }


def found(
    config: Config, clients: int, plan: RunPlan, cpu_seconds: float, parameters: int | None, wanted: Wanted
) -> Found | None:
    """The neighbours of a run, or ``None`` where it has no noise to compare.

    Raises:
        ConfigError: They are to be drawn, and there are none.
    """
    if plan.mechanism is None:
        if wanted.plot is not None:
            raise ConfigError(f"--plot {wanted.plot}: there is nothing to draw; the run has no noise")
        return None
    with console(stderr=True).status("…") as status:
        try:
            among = neighbours(
                config,
                clients,
                plan,
                cpu_seconds=cpu_seconds,
                thorough=wanted.thorough,
                progress=lambda name: status.update(f"{name} …"),
            )
        except ConfigError as refusal:
            if wanted.plot is not None:
                raise
            among = Neighbourhood(None, (), {"all neighbours": str(refusal)})
    best, why = recommended(among, lambda one: _fits(one, parameters))
    others = [one for one in among.options if best is None or one.error < best.error / (1 + 0.02)]
    instead = next((one for one in others if _fits(one, parameters)), None)
    return Found(among, parameters, best, why, instead if best is not None and instead is not best else None)


def command(one: Neighbour, file: Path, assignments: Sequence[str]) -> str:
    """The command that runs it."""
    changes = flags_of(one.changes)
    keys = {flag.partition("=")[0] for flag in changes}
    if "privacy.epsilon" in keys:
        keys.add("privacy.noise_multiplier")
    kept = [flag for flag in assignments if flag.partition("=")[0].strip() not in keys]
    return " ".join(["hubbub train", shlex.quote(str(file)), *(f"--set {shlex.quote(flag)}" for flag in (*kept, *changes))])


def show(told: Found, file: Path, assignments: Sequence[str]) -> None:
    """Print the neighbours as a table, the recommendation, and the command that follows it."""
    screen, own = console(), told.among.own
    if not told.among.options:
        _say_left_out(told)
        return
    epsilon = told.best.epsilon if told.best else max(one.epsilon for one in told.among.options)
    say(screen)
    say(screen, f"Neighbours, all calibrated to the same epsilon ({rounded_up(epsilon)}) and delta, by their error")
    narrow = screen.is_terminal and screen.width < _TABLE
    print_columns(_table(told, own, narrow=narrow))
    times = "--json has their epsilons and times" if narrow else "CPU s: to optimise the strategy and calibrate its noise"
    say(screen, f"error: {WHAT}. {times}. *: recommended.")
    _say_left_out(told)
    _recommend(told, file, assignments)


def _table(told: Found, own: Neighbour | None, *, narrow: bool) -> Table:
    """One line for each neighbour; on a narrow terminal without what is nearly the same in all of them."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0) if narrow else (0, 1))
    table.add_column("strategy")
    table.add_column("cohorts", no_wrap=True)
    numbers = ["noise\nmultiplier", "error", "change", "memory"]
    if not narrow:
        numbers = ["noise multiplier", "epsilon", *numbers[1:], "CPU s"]
    for column in (*numbers, ""):
        table.add_column(column, justify="right", no_wrap=True)
    for one in told.among.options:
        cells = [
            one.name,
            one.cohorts,
            f"{one.noise_multiplier:.5g}",
            f"{one.error:.4g}",
            "-" if own is None else "as it is" if one is own else f"{100 * (one.error / own.error - 1):+.1f} %",
            _memory(one, told.parameters),
        ]
        if not narrow:
            cells = [*cells[:3], rounded_up(one.epsilon), *cells[3:], f"{one.cpu_seconds:.2f}"]
        table.add_row(*cells, "*" if one is told.best else "")
    return table


def _say_left_out(told: Found) -> None:
    for name, reason in told.among.left_out.items():
        say(console(), f"Left out, {name}: {printable(reason, _LONGEST)}")


def _recommend(told: Found, file: Path, assignments: Sequence[str]) -> None:
    screen = console()
    say(screen)
    if told.best is None:
        say(screen, f"Recommended: none of these; {told.why}.")
        return
    if told.best is told.among.own:
        say(screen, f"Recommended: the settings as they are; {told.why}.")
    else:
        say(screen, f"Recommended: {told.best.name} ({told.best.cohorts}); {told.why}:")
        say(screen, f"  {command(told.best, file, assignments)}")
    if told.instead is not None:
        less = 100 * (1 - told.instead.error / told.best.error)
        say(
            screen,
            f"With coins that nobody sees or can check afterwards ({told.instead.cohorts}), {told.instead.name} has "
            f"{less:.0f} % less error:",
        )
        say(screen, f"  {command(told.instead, file, assignments)}")


def draw(path: Path, name: str, told: Found, plan: RunPlan) -> None:
    """Write the picture of the neighbours and of epsilon over rounds."""
    # Drawing costs a second to import.
    from hubbub.report.neighbours import Drawn, draw_neighbours

    marks = [
        Drawn(f"{one.name} ({one.cohorts})", one.error, _memory(one, told.parameters), one is told.among.own, one is told.best)
        for one in told.among.options
    ]
    spent = prospect.epsilons(plan.promise(), plan.delta, _PARTS)
    files.write_atomic(path, draw_neighbours(name, marks, spent), mode=0o644)


def size(count: float) -> str:
    """Bytes as one reads them."""
    for unit, least in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def _bytes(one: Neighbour, parameters: int | None) -> int | None:
    rows = one.memory_rows
    if rows is None or parameters is None:
        return None
    return prospect.remembered_bytes(rows, parameters + one.plan.clip_norms.further)


def _memory(one: Neighbour, parameters: int | None) -> str:
    needed = _bytes(one, parameters)
    if needed is not None:
        return size(needed) if needed else "none"
    return "unknown" if one.memory_rows is None else f"{one.memory_rows:,} rows"


def _fits(one: Neighbour, parameters: int | None) -> bool:
    """Whether this machine has memory for what the noise remembers."""
    needed = _bytes(one, parameters)
    if needed is None or needed < _LARGE or parameters is None:
        return True
    import torch

    from hubbub.noise.stream import require_memory

    try:
        require_memory(one.memory_rows or 0, parameters, torch.empty(0, dtype=torch.float64))
    except ConfigError:
        return False
    return True
