"""Methods at equal epsilon: the learning rate of each chosen on held-out training examples, then a table and a picture."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _runs import COLORS, MARKERS, Runs, Settings, accuracies, best, cell, choosing, markdown


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Args:
        base: Settings of all runs.
        methods: Further settings by method.
        grids: Learning rates to choose from, by method.
        epsilons: Budgets.
        key: The setting that is chosen.
    """

    base: Settings
    methods: Mapping[str, Settings]
    grids: Mapping[str, Sequence[float]]
    epsilons: Sequence[float]
    key: str = "training.learning_rate"

    def finish(self, runs: Runs, arguments: argparse.Namespace) -> None:
        """Choose, then test, one epsilon after another; ``arguments.epsilons`` are only some of them, in their order."""
        for epsilon in arguments.epsilons or self.epsilons:
            grid = [choosing({**self._of(m, epsilon), self.key: rate}) for m in self.methods for rate in self.grids[m]]
            runs.finish(grid, arguments)
            tests = [self.tests(runs, method, epsilon, arguments.seeds) for method in self.methods]
            # Seed by seed, so that what is interrupted has one of each.
            runs.finish([settings for some in zip(*tests, strict=True) for settings in some], arguments)

    def tests(self, runs: Runs, method: str, epsilon: float, seeds: int) -> list[Settings]:
        """The runs of a cell of the table; none before a rate is chosen."""
        settings = self._of(method, epsilon)
        rate = best(runs, settings, [{self.key: rate} for rate in self.grids[method]])
        return [] if rate is None else [{**settings, **rate, "training.seed": seed} for seed in range(seeds)]

    def table(self, runs: Runs, seeds: int) -> str:
        """Means and ranges of the seeds, and the chosen rates, by method and epsilon."""
        rows = []
        for method in self.methods:
            tests = [self.tests(runs, method, epsilon, seeds) for epsilon in self.epsilons]
            cells = [cell(runs, some) for some in tests]
            rates = [f", rate {some[0][self.key]:g}" if some else "" for some in tests]
            rows.append([method, *(f"{shown}{rate}" for shown, rate in zip(cells, rates, strict=True))])
        return markdown(["method", *(f"epsilon {epsilon:g}" for epsilon in self.epsilons)], rows)

    def draw(self, file: Path, runs: Runs, seeds: int, title: str, unit: str) -> None:
        """A PNG of accuracies over epsilon: the mean, and the range of seeds."""
        curves = {
            method: {epsilon: accuracies(runs, self.tests(runs, method, epsilon, seeds)) for epsilon in self.epsilons}
            for method in self.methods
        }
        draw(
            file,
            curves,
            title,
            f"epsilon at delta {self.base['privacy.delta']:.0e}, {unit} level".replace("e-0", "e-"),
            "test accuracy",
            share=True,
        )

    def _of(self, method: str, epsilon: float) -> dict[str, object]:
        return {**self.base, "privacy.epsilon": epsilon, **self.methods[method]}


def draw(
    file: Path,
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    title: str,
    horizontal: str,
    vertical: str,
    *,
    share: bool = False,
) -> None:
    """A PNG of numbers over epsilon, by method: the mean of each, and its range; ``share`` shows them in percent."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for (method, points), color, marker in zip(curves.items(), COLORS, MARKERS, strict=False):
        known = {epsilon: values for epsilon, values in points.items() if values}
        if not known:
            continue
        means = [sum(values) / len(values) for values in known.values()]
        axes.fill_between(list(known), [*map(min, known.values())], [*map(max, known.values())], color=color, alpha=0.2, lw=0)
        axes.plot(list(known), means, color=color, marker=marker, markersize=5, label=method)
    ticks = sorted({epsilon for points in curves.values() for epsilon in points})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(visible=True, color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(file)
