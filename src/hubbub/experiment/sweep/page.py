"""The files of a sweep: ``sweep.html``, which opens offline, ``results.csv`` and ``results.json``."""

import csv
import io
import json
import math
from pathlib import Path

from hubbub._util.files import write_atomic
from hubbub._util.strict_json import finite_only
from hubbub.experiment.sweep.grid import SEED
from hubbub.experiment.sweep.results import SweepSummary
from hubbub.report.drawing import SERIES, canvas, shown, styled
from hubbub.report.page import Chart, rendered

__all__ = ["page", "write"]


def write(folder: Path, sweep: SweepSummary) -> None:
    """Write the files of a sweep into its folder."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(sweep.rows())
    write_atomic(folder / "results.csv", table.getvalue().encode())
    write_atomic(folder / "results.json", json.dumps(finite_only(sweep.as_json()), allow_nan=False, indent=1).encode())
    write_atomic(folder / "sweep.html", page(sweep).encode())


def page(sweep: SweepSummary) -> str:
    """The HTML page; it links to the report of each run in the sweep's folder."""
    header, *rows = sweep.table()
    links = [
        [
            (cell.report, f"seed {cell.settings[SEED]}" if SEED in cell.settings else "report")
            for cell in point.cells
            if cell.report
        ]
        for point in sweep.points
    ]
    of = "held-out training examples" if sweep.held_out else "public test examples"
    about = f"On {of}, over the epsilon of one run alone. The best point is orange; bars are standard deviations over seeds."
    picture = _accuracy_against_epsilon(sweep)
    return rendered(
        "sweep.html",
        sweep=sweep,
        finished=sum(cell.state == "finished" for cell in sweep.cells),
        header=header,
        rows=list(zip(rows, links, strict=True)),
        charts=[Chart("Accuracy against epsilon", picture, about, sweep.held_out)] if picture else [],
        failed=[cell for cell in sweep.cells if cell.state == "failed"],
    )


@styled
def _accuracy_against_epsilon(sweep: SweepSummary) -> str:
    """A point of the picture for each point of the grid with a finite epsilon; empty without one."""
    from matplotlib.ticker import PercentFormatter

    best, made = sweep.best, None
    for point in sweep.points:
        mean, deviation = point.spread("accuracy")
        if mean is None or point.epsilon is None or not math.isfinite(point.epsilon):
            continue
        if made is None:
            made = canvas()
            axes = made.subplots()
        color = SERIES[1 if point is best else 0]
        axes.errorbar([point.epsilon], [mean], yerr=deviation, color=color, marker="o", linestyle="", elinewidth=1)
    if made is None:
        return ""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("epsilon of one run")
    axes.set_ylabel("accuracy")
    return shown(made, "Accuracy against epsilon")
