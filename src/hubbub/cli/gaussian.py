"""``hubbub gaussian``: the noise of one Gaussian release by every published calibration, and what each really attains."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from hubbub import files, gaussian
from hubbub._checks import open_unit, scale
from hubbub.cli.output import console, print_json, print_whole, say
from hubbub.cli.setting import require_output
from hubbub.gaussian.closed_forms import Calibration, shown, why_not_proved
from hubbub.report.calibrations import Curve, draw_calibrations

__all__ = ["show"]

_TABLE = 110
_BAR = 16
_POINTS = 121


@dataclass(frozen=True)
class Row:
    """One calibration: what it computes, or why it has no value."""

    name: str
    computed: Calibration | None
    refused: str | None


def show(epsilon: float, delta: float, sensitivity: float, *, plot: Path | None, as_json: bool) -> None:
    """Print the table of all calibrations for a budget, and draw how loose each is over epsilon.

    Args:
        epsilon: From 1e-12 to 1e12.
        delta: Strictly between 0 and 1.
        sensitivity: L2, in the unit of the noise that is printed.
        plot: Where to draw.
        as_json: Print one JSON object instead.

    Raises:
        ValueError: A number out of range.
        ConfigError: A picture that cannot be written there.
    """
    budget = scale("epsilon", epsilon), open_unit("delta", delta), scale("sensitivity", sensitivity)
    require_output("--plot", plot, ".png")
    rows = [_row(name, *budget) for name in gaussian.NAMES]
    least = gaussian.noise_multiplier(*budget)
    if plot is not None:
        files.write_atomic(plot, draw_calibrations(budget[0], budget[1], _curves(*budget[:2], rows)), mode=0o644)
    if as_json:
        shared = dict(zip(("epsilon", "delta", "sensitivity"), budget, strict=True))
        calibrations = [_facts(row, least) for row in rows]
        print_json({**shared, "calibrations": calibrations, "plot": None if plot is None else str(plot)})
    else:
        _print(budget, sorted(rows, key=_by_noise), least)


def _row(name: str, epsilon: float, delta: float, sensitivity: float) -> Row:
    try:
        answer = gaussian.computed(name, epsilon, delta, sensitivity)
    except ValueError as error:
        return Row(name, None, str(error))
    return Row(name, answer, None if answer.proved else why_not_proved(answer))


def _by_noise(row: Row) -> float:
    """Refused or not; what has no value comes last."""
    return math.inf if row.computed is None else row.computed.noise_multiplier


def _facts(row: Row, least: float) -> dict[str, Any]:
    answer = row.computed
    return {
        "name": row.name,
        "noise_multiplier": None if answer is None else answer.noise_multiplier,
        "attained_delta": None if answer is None else answer.attained_delta,
        "relative_to_analytic": None if answer is None else answer.noise_multiplier / least,
        "holds": None if answer is None else answer.holds,
        "refused": row.refused,
        "source": None if answer is None else answer.source,
    }


def _print(budget: tuple[float, float, float], rows: list[Row], least: float) -> None:
    epsilon, delta, sensitivity = budget
    screen = console()
    say(screen, f"One Gaussian release of L2 sensitivity {sensitivity!r} that is to be ({epsilon!r}, {delta!r})-DP")
    say(screen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("calibration", no_wrap=True)
    for column in ("noise", "delta attained", "noise over analytic"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    ratios = [row.computed.noise_multiplier / least for row in rows if row.computed is not None]
    for row in rows:
        answer = row.computed
        if answer is None:
            table.add_row(row.name, "-", "-", "-", "", "refused")
            continue
        ratio = answer.noise_multiplier / least
        verdict = "the least noise" if row.name == "analytic" else "holds" if answer.holds else "false"
        table.add_row(
            row.name,
            shown(answer.noise_multiplier, 6),
            shown(answer.attained_delta, 3),
            f"{ratio:.4g}",
            "█" * max(1, round(_BAR * ratio / max(ratios))),
            verdict if row.refused is None else "refused",
        )
    print_whole(table, _TABLE)
    refused = [row.refused for row in rows if row.refused is not None]
    if refused:
        say(screen)
        say(screen, "Refused:")
        for reason in refused:
            say(screen, f"  {reason}", indent=4)


def _curves(epsilon: float, delta: float, rows: list[Row]) -> list[Curve]:
    """Noise over that of the analytic calibration, of all but itself, over epsilons around the one asked for.

    Always all of them and in the order of their names, by which a picture gives them their looks; one that has no value is
    NaN, and has a name in the legend alone.
    """
    low, high = max(min(0.01, epsilon / 10), 1e-12), min(max(50.0, epsilon * 10), 1e12)
    epsilons = np.geomspace(low, high, _POINTS)
    least = np.array([gaussian.noise_multiplier(float(eps), delta) for eps in epsilons])
    curves = []
    for row in rows:
        if row.name != "analytic":
            found = [_row(row.name, float(eps), delta, 1.0).computed for eps in epsilons]
            noise = np.array([math.nan if one is None else one.noise_multiplier for one in found])
            proved = np.array([one is None or one.proved for one in found])
            curves.append(Curve(row.name if row.refused is None else f"{row.name}, refused", epsilons, noise / least, proved))
    return curves
