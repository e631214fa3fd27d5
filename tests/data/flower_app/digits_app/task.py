"""Softmax regression on 8 × 8 digits, in numpy: a client's message costs no import of torch."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hubbub.mechanism import Mechanism

Model = dict[str, npt.NDArray[np.float64]]

PIXELS, CLASSES = 64, 10
STEPS, LEARNING_RATE = 10, 0.5
NODES, COHORT = 3, 2
CLIP_NORM, MOMENTUM, DELTA = 0.5, 0.5, 1e-5
ROUNDS, SEPARATION, PARTICIPATIONS, NOISE_MULTIPLIER = 5, 2, 3, 1.0


def mechanism() -> "Mechanism":
    """Noise over two rounds; a node that joins one round does not join the next."""
    from hubbub.mechanism import Mechanism
    from hubbub.mechanism.participation import MinSeparation
    from hubbub.mechanism.strategies import toeplitz

    return Mechanism(toeplitz.square_root(ROUNDS, 2), MinSeparation(SEPARATION, PARTICIPATIONS), NOISE_MULTIPLIER)


def initial() -> Model:
    return {"weight": np.zeros((CLASSES, PIXELS)), "bias": np.zeros(CLASSES)}


def train(model: Model, data: Path) -> Model:
    """The model after some steps of gradient descent on all of a node's digits."""
    with np.load(data) as digits:
        x, targets = digits["x"], np.eye(CLASSES)[digits["y"]]
    weight, bias = model["weight"], model["bias"]
    for _ in range(STEPS):
        scores = x @ weight.T + bias
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (likely / likely.sum(axis=1, keepdims=True) - targets) / len(x)
        weight, bias = weight - LEARNING_RATE * error.T @ x, bias - LEARNING_RATE * error.sum(axis=0)
    return {"weight": weight, "bias": bias}
