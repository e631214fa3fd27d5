"""The pictures of the pages that teach: run it to draw them again into docs/images.

python docs/site/pictures.py
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hubbub.accounting import Gaussian, trade_off
from hubbub.mechanism import gaussian
from hubbub.mechanism.participation import SingleParticipation
from hubbub.mechanism.strategies import Identity, Strategy, toeplitz

IMAGES = Path(__file__).parent.parent / "images"
# Legible on white and on black; Okabe and Ito 2008, for eyes of every kind.
INK, BLUE, ORANGE, GREEN = "#808893", "#0084c8", "#d55e00", "#009e73"
ROUNDS = 128
DELTA = 1e-5


def main() -> None:
    """Draw all of them."""
    mpl.rcParams.update({
        "svg.hashsalt": "hubbub", "svg.fonttype": "path", "font.size": 11, "savefig.transparent": True,
        "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    })  # fmt: skip
    for name, figure in PICTURES.items():
        figure().savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")


def epsilons() -> Figure:
    """What the best test can do, for one Gaussian release of each epsilon."""
    figure, axes = plt.subplots(figsize=(5.2, 4.2))
    false_alarms = np.linspace(0, 1, 400)
    axes.plot([0, 1], [0, 1], color=INK, linestyle=":", label="a guess (epsilon 0)")
    for epsilon, color, style in ((0.5, GREEN, "-"), (2.0, BLUE, "--"), (8.0, ORANGE, "-.")):
        release = [(Gaussian(gaussian.noise_multiplier(epsilon, DELTA)), 1)]
        found = 1 - trade_off(release, false_alarms, "zero-out")
        axes.plot(false_alarms, found, color=color, linestyle=style, linewidth=2, label=f"epsilon {epsilon:g}")
    axes.set(xlabel="false alarms: says “was there” of one who was not", ylabel="found: says so of one who was")
    axes.legend(loc="lower right")
    return figure


def _strategies() -> dict[str, tuple[Strategy, str]]:
    return {
        "independent": (Identity(ROUNDS), ORANGE),
        "correlated": (toeplitz.square_root(ROUNDS, bands=ROUNDS), BLUE),
    }


def _sums(strategy: Strategy, z: np.ndarray) -> np.ndarray:
    """The noise in the sum of all rounds so far, at sensitivity 1."""
    sensitivity = strategy.sensitivity(SingleParticipation()).value
    noise = sensitivity * np.linalg.solve(strategy.matrix(), z)
    return np.cumsum(noise, axis=0)


def walks() -> Figure:
    """The noise in a parameter of the model over rounds."""
    z = np.random.default_rng(5).standard_normal((ROUNDS, 12))
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.4), sharey=True)
    for axes, (name, (strategy, color)) in zip(panels, _strategies().items(), strict=True):
        axes.plot(_sums(strategy, z), color=color, linewidth=0.9, alpha=0.9)
        axes.set(title=name, xlabel="round")
        axes.axhline(0, color=INK, linewidth=0.7)
    panels[0].set_ylabel("noise in the model")
    figure.tight_layout()
    return figure


def matrices() -> Figure:
    """C and its inverse for 16 rounds, as images."""
    strategy = toeplitz.square_root(16, bands=16)
    C = strategy.matrix()
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.2))
    named = {"A: sums of the rounds so far": np.tril(np.ones((16, 16))), "C: what noise is sized for": C}
    for axes, (name, matrix) in zip(panels, {**named, "C⁻¹: what is taken back": np.linalg.inv(C)}.items(), strict=True):
        _image(axes, matrix)
        axes.set_title(name, fontsize=11)
    figure.tight_layout()
    return figure


def _image(axes: Axes, matrix: np.ndarray) -> None:
    axes.imshow(matrix, cmap="PuOr_r", vmin=-1, vmax=1)
    axes.set(xticks=[], yticks=[])


# Question, the answer that leads to the right and where, the answer that leads on.
TREE = (
    ("What must be hidden?", "each example", "unit = example:\nquestion 5", "all of a client"),
    ("May the server see\none client’s update?", "no", "Paillier;\nthen question 4", "yes"),
    ("Cohorts drawn by you,\nseen by nobody?", "yes", "Poisson, amplified; or\ncyclic Poisson, banded", "no"),
    ("When does a client\ncome back?", "never", "time-varying, BLT", ""),
    ("", "b rounds later,\nor more", "banded; or BLT in\nlittle memory", ""),
    ("", "exactly b later", "dense", ""),
    ("", "every round", "independent noise", ""),
    ("One place, examples:\nepsilon below 2?", "yes", "DP-SGD", ""),
    ("", "no", "fixed order,\noptimal Toeplitz", ""),
)
NUMBERED = (0, 1, 2, 3, 7)


def tree() -> Figure:
    """The questions that lead to a mechanism."""
    figure, axes = plt.subplots(figsize=(6.6, 8.4))
    axes.set(xlim=(0, 10), ylim=(-8.6, 0.6))
    axes.axis("off")
    box = {"boxstyle": "round,pad=0.45", "facecolor": "none", "linewidth": 1.6}
    last = 0
    for row, (question, right, result, down) in enumerate(TREE):
        if question:
            last = row
            text = f"{NUMBERED.index(row) + 1}. {question}"
            axes.text(0.1, -row, text, va="center", bbox={**box, "edgecolor": BLUE})
        axes.text(6.95, -row, result, va="center", bbox={**box, "edgecolor": ORANGE})
        axes.text(4.5, -row + 0.08, right, va="bottom", ha="left", fontsize=9.5)
        start = 4.3 if question else 2.0
        axes.annotate("", (6.55, -row), (start, -row), arrowprops={"arrowstyle": "->", "color": INK})
        if not question:
            axes.plot([2.0, 2.0], [-last - 0.35, -row], color=INK, linewidth=1)
        if down:
            axes.annotate("", (2.0, -row - 0.62), (2.0, -row - 0.36), arrowprops={"arrowstyle": "->", "color": INK})
            axes.text(2.15, -row - 0.5, down, va="center", fontsize=9.5)
    return figure


PICTURES = {"epsilon": epsilons, "noise_walks": walks, "noise_matrices": matrices, "which_mechanism": tree}


if __name__ == "__main__":
    main()
