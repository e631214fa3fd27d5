"""Federated MNIST: what privacy costs, and a student report's grid of clip norms and noise with the epsilons that it has.

Whole clients are the units; the CNN of 21,840 parameters, one local epoch in batches of 10. Three parts:

    price   100 clients of 600 images, all in each of six rounds, delta 1e-5: noise that hides something
    many    1,000 clients of 60 images, each in a round with probability 0.1, 100 rounds, epsilon 2 and 8 at delta 1e-5
    grid    100 clients as above, clip norm 0.1 to 0.9 × sigma 0.1 to 0.4, delta 1e-3: accuracies, and epsilons beside what
            the report's program printed

Settings of the first two are chosen on 6,000 held-out *training* images with a seed that is not used again. The noise is
sigma times the clip norm of the whole update, on the sum of a round; it is that of a simulation, from a known seed.

    python examples/headlines/federated_mnist.py --data FOLDER_WITH_MNIST_NPZ
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _runs import Runs, Settings, best, cell, choosing, final, markdown, parsed, parser, percent, show
from epsilon_table import DELTA as GRID_DELTA
from epsilon_table import TENSORS, as_printed, readings, rounded_up

from hubbub.mechanism import gaussian

ROUNDS = 6
RATE, SERVER_RATE, CLIP = "training.learning_rate", "training.server_learning_rate", "privacy.clip_norm"
PARTS = ("price", "many", "grid")
# Clip norm and sigma; none without privacy.
PRICES: Mapping[str, dict[str, Any]] = {
    "clip norm 2, sigma 1": {CLIP: 2.0, "privacy.noise_multiplier": 1.0},
    "clip norm 0.5, sigma 2": {CLIP: 0.5, "privacy.noise_multiplier": 2.0},
    "no privacy": {"privacy.mode": "none"},
}
# Of which the best on held-out images is taken.
CANDIDATES: Mapping[str, tuple[Settings, ...]] = {
    "clip norm 2, sigma 1": ({RATE: 0.05}, {RATE: 0.1}),
    # All updates are clipped: the server's rate says how far they go.
    "clip norm 0.5, sigma 2": (
        {RATE: 0.05}, {RATE: 0.025}, {RATE: 0.1}, {RATE: 0.05, SERVER_RATE: 1.5}, {RATE: 0.05, SERVER_RATE: 2.0},
    ),
    "no privacy": ({RATE: 0.05}, {RATE: 0.1}),
}  # fmt: skip
MANY_RATE = 0.1
MANY_CLIP_NORMS = {2.0: (0.25, 0.4), 8.0: (0.55, 0.75)}
GRID_RATE = 0.05
# Corners and middle first, then what lies between them, so that a grid that is interrupted covers the whole of it.
_NORMS = (0.1, 0.9, 0.5, 0.3, 0.7, 0.2, 0.4, 0.6, 0.8)
GRID = [(clip_norm, sigma) for sigmas in ((0.1, 0.4), (0.2, 0.3)) for clip_norm in _NORMS for sigma in sigmas]


def federated(quick: bool, **further: Any) -> dict[str, Any]:
    """Settings that all runs share."""
    data = {"data.name": "digits", "model.name": "mlp"} if quick else {"data.name": "mnist", "model.name": "cnn"}
    return {"privacy.noise": "simulation", "training.batch_size": 10, "training.plan": "batched-20", **data, **further}


def everybody(quick: bool) -> dict[str, Any]:
    """All of 100 clients in each of six rounds."""
    clients = {"data.clients": 20 if quick else 100, "participation.pattern": "every-round"}
    return federated(quick, **{"training.rounds": 2 if quick else ROUNDS, **clients})


def price(quick: bool, name: str) -> dict[str, Any]:
    """Settings of a row of the first part, without learning rate and seed."""
    return {**everybody(quick), "privacy.delta": 1e-5, **PRICES[name]}


def many(quick: bool, epsilon: float) -> dict[str, Any]:
    """Settings of a row of the second part, without clip norm and seed."""
    sizes = (4, 60, 6) if quick else (100, 1000, 100)
    named = dict(zip(("training.rounds", "data.clients", "training.cohort_size"), sizes, strict=True))
    told = {"privacy.epsilon": epsilon, "privacy.delta": 1e-5, "training.evaluate_every": 50, RATE: MANY_RATE}
    return federated(quick, **named, **told)


def grid(quick: bool, clip_norm: float, sigma: float) -> dict[str, Any]:
    """A run of the third part, one seed."""
    told = {CLIP: clip_norm, "privacy.noise_multiplier": sigma, "privacy.delta": GRID_DELTA, RATE: GRID_RATE}
    return {**everybody(quick), **told, "training.evaluate_every": ROUNDS, "training.seed": 0}


def cells(quick: bool) -> list[tuple[float, float]]:
    """Clip norms and sigmas of the grid, in the order in which they are computed."""
    return GRID[:3] if quick else GRID


def tested(runs: Runs, settings: Settings, candidates: Sequence[Settings], seeds: int) -> list[Settings]:
    """The runs of a row, with what was chosen for it; none before that."""
    chosen = best(runs, settings, candidates)
    return [] if chosen is None else [{**settings, **chosen, "training.seed": seed} for seed in range(seeds)]


def rows_of(part: str, quick: bool) -> Iterator[tuple[str, Settings, Sequence[Settings]]]:
    """Of the first two parts: each row's name and settings, and what is chosen from."""
    few = 1 if quick else None
    if part == "price":
        for name in PRICES:
            yield name, price(quick, name), CANDIDATES[name][:few]
    if part == "many":
        for epsilon, norms in MANY_CLIP_NORMS.items():
            yield f"1,000 clients, epsilon {epsilon:g}", many(quick, epsilon), [{CLIP: norm} for norm in norms][:few]


def compute(part: str, runs: Runs, arguments: argparse.Namespace) -> None:
    """Finish a part."""
    quick = arguments.quick
    if part == "grid":
        runs.finish([grid(quick, *point) for point in cells(quick)[: arguments.cells]], arguments)
    for name, settings, candidates in rows_of(part, quick):
        if arguments.rows and name not in arguments.rows:
            continue
        runs.finish([choosing({**settings, **candidate}) for candidate in candidates], arguments)
        runs.finish(tested(runs, settings, candidates, arguments.seeds), arguments)


def cost_table(runs: Runs, quick: bool, seeds: int) -> str:
    """What privacy costs, of the first two parts."""
    rows = []
    for part in PARTS[:2]:
        for name, settings, candidates in rows_of(part, quick):
            tests = tested(runs, settings, candidates, seeds)
            record = runs.get(tests[0]) if tests else None
            epsilon = "–" if record is None else "infinite" if record["epsilon"] is None else rounded_up(record["epsilon"])
            chosen = ", ".join(
                f"{key.partition('.')[2].replace('_', ' ')} {value:g}"
                for key, value in (best(runs, settings, candidates) or {}).items()
            )
            rows.append([name, chosen or "–", epsilon, cell(runs, tests)])
    return markdown(["setting", "chosen", "epsilon at delta 1e-5", "test accuracy"], rows)


def epsilons(clip_norm: float, sigma: float) -> list[float]:
    """At delta 1e-3: of our runs, one release and all; of per-tensor clipping with that noise, all; of the program, all."""
    whole, per_tensor, ran = sigma * clip_norm, clip_norm * math.sqrt(TENSORS), readings(clip_norm, sigma)["D"]
    rounds = math.sqrt(ROUNDS)
    return [
        gaussian.epsilon(GRID_DELTA, whole, clip_norm),
        gaussian.epsilon(GRID_DELTA, whole, clip_norm * rounds),
        gaussian.epsilon(GRID_DELTA, whole, per_tensor * rounds),
        gaussian.epsilon(GRID_DELTA, ran[0], ran[1] * rounds),
    ]


def grid_table(runs: Runs, quick: bool) -> str:
    """The cells of the grid that are finished."""
    rows = []
    for clip_norm, sigma in sorted(cells(quick)):
        record = runs.get(grid(quick, clip_norm, sigma))
        if record is not None:
            shown = [percent([final(record)]), percent([record["train_accuracy"]]), f"{as_printed(clip_norm, sigma):.3g}"]
            rows.append([f"{clip_norm:g}", f"{sigma:g}", *shown, *map(rounded_up, epsilons(clip_norm, sigma))])
    names = ["test", "train", "printed", "one round", "six rounds", "six, per tensor", "six, as it ran"]
    return markdown(["clip norm", "sigma", *names], rows)


def draw_grid(file: Path, runs: Runs, quick: bool) -> None:
    """The report's two pictures: accuracy over clip norm and sigma, on test and on training images."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    found = [(*point, record) for point in sorted(cells(quick)) if (record := runs.get(grid(quick, *point))) is not None]
    figure = Figure(figsize=(11, 4.8), dpi=150, layout="constrained")
    for place, (title, of) in enumerate((("test images", final), ("training images", lambda record: record["train_accuracy"]))):
        axes: Any = figure.add_subplot(1, 2, place + 1, projection="3d")
        x, y, heights = zip(*((norm, sigma, of(record)) for norm, sigma, record in found), strict=True)
        if len(set(x)) > 1 and len(set(y)) > 1:
            axes.plot_trisurf(x, y, heights, cmap="viridis", alpha=0.85, linewidth=0.2, edgecolor="#ffffff")
        axes.scatter(x, y, heights, color="#333333", s=8, depthshade=False)
        axes.zaxis.set_major_formatter(PercentFormatter(1.0))
        axes.view_init(elev=22, azim=-130)
        axes.set_xlabel("clip norm")
        axes.set_ylabel("sigma")
        axes.set_title(f"accuracy on {title} after six rounds", loc="left", fontweight="bold")
    figure.savefig(file)


def main() -> None:
    made = parser(__doc__.splitlines()[0], "federated_mnist.json", "federated_mnist.png")
    made.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="only these, in this order")
    made.add_argument("--rows", nargs="+", help="of the first two parts, only these")
    made.add_argument("--cells", type=int, default=len(GRID), help="of the grid, only so many: the corners come first")
    arguments = parsed(made)
    runs = Runs(arguments.results)
    if not arguments.table:
        for part in arguments.part:
            compute(part, runs, arguments)
    show("federated_cost", cost_table(runs, arguments.quick, arguments.seeds), arguments)
    show("federated_grid", grid_table(runs, arguments.quick), arguments)
    draw_grid(arguments.picture, runs, arguments.quick)


if __name__ == "__main__":
    main()
