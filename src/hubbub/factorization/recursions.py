"""Lower-triangular matrices that a few states stream: C_ii = d_i and C_ij = a_i·Φ_{i−1}···Φ_{j+1}·b_j below the diagonal.

Letters: d diagonal ``(n,)``, a outputs and b inputs ``(n, states)``, Φ transitions, ``(n, states)`` where they are diagonal or
``(n, states, states)``; y = C⁻¹·z is y_t = (z_t − a_t·s_t) / d_t with states s_{t+1} = Φ_t·s_t + b_t·y_t. A workload,
η learning rates, β momentum, m its buffer, θ = A·y the error of the models.

Of the dense optimum X = Σ c_q·(P + s_q·V)⁻¹ each term has rows that are multiples of the row before: Z_{i+1,j} = ρ_i·Z_ij for
i ≥ j, so that a state for each pole streams it.
"""

import math
from typing import NamedTuple

import numpy as np

from hubbub._checks import Array
from hubbub.factorization.pencils import pivots
from hubbub.factorization.poles import Poles
from hubbub.workloads import Workload

__all__ = ["Recursion", "column_norms", "dense", "magnitudes", "of_poles", "squared_errors"]


class Recursion(NamedTuple):
    """The numbers of a matrix that is streamed by states; the last transition and the last inputs are never used."""

    diagonal: Array
    outputs: Array
    transitions: Array
    inputs: Array


def of_poles(gram: Array, v: Array, poles: Poles) -> Recursion:
    """The lower-triangular C with CᵀC = D·Σ c_q·(P + s_q·V)⁻¹·D, one state a pole, in O(rounds · poles²) time.

    D is diagonal and such that every column of C has norm 1.

    Args:
        gram: The two bands of a tridiagonal P.
        v: The diagonal of V, ``(n,)``.
        poles: c and s.
    """
    n, states = len(v), len(poles.shifts)
    ratios, h = np.zeros((n, states)), np.empty((n, states))
    for q, (shift, weight) in enumerate(zip(poles.shifts, poles.weights, strict=True)):
        shifted = (shift * v)[None, :]
        backward = pivots(gram, shifted, backwards=True)[0]
        window = pivots(gram, shifted, backwards=False)[0] + backward - (gram[0] + shifted[0])
        h[:, q] = weight / window
        ratios[:-1, q] = -gram[1, :-1] / backward[1:]
    # Columns of norm 1: row and column i of X are multiplied by D_i, which a factor D_{i+1} / D_i on each ρ_i spreads.
    squared = h.sum(axis=1)
    h /= squared[:, None]
    ratios[:-1] *= np.sqrt(squared[:-1] / squared[1:])[:, None]
    # X_ij = 1·(ρ_{i−1}···ρ_j)·h_j for i ≥ j; its triangular root is peeled off from the last row on, with G = Σ over later
    # rows of what they make of the state.
    G = np.zeros((states, states))
    d, a = np.empty(n), np.empty((n, states))
    for i in range(n - 1, -1, -1):
        seen = G @ h[i]
        root = math.sqrt(1 - h[i] @ seen)
        row = (1 - seen) / root
        d[i], a[i] = root, row
        if i:
            step = ratios[i - 1]
            row = step * row
            G *= np.multiply.outer(step, step)
            G += np.multiply.outer(row, row)
    return Recursion(d, a, ratios, ratios * h)


def column_norms(recursion: Recursion) -> Array:
    """``(n,)``: the squared norm of each column, in O(n · states²) time for diagonal transitions."""
    diagonal, outputs, transitions, inputs = recursion
    n, states = outputs.shape
    G = np.zeros((states, states))
    norms = np.square(diagonal)
    for j in range(n - 2, -1, -1):
        # G becomes what rows j + 1 and on make of the state after round j.
        G = _squared_from_right(transitions[j + 1], G)
        G += np.multiply.outer(outputs[j + 1], outputs[j + 1])
        norms[j] += inputs[j] @ G @ inputs[j]
    return norms


def magnitudes(recursion: Recursion) -> Array:
    """``(n,)``: the squared norm that each column would have if nothing cancelled; that of the column where nothing does."""
    return column_norms(Recursion(*(np.abs(part) for part in recursion)))


def squared_errors(workload: Workload, recursion: Recursion) -> Array:
    """``(n,)``: the squared norm of each row of A·C⁻¹, in O(n · states²) time for diagonal transitions."""
    diagonal, outputs, transitions, inputs = recursion
    n, states = outputs.shape
    beta = workload.momentum
    rates = np.ones(n) if workload.learning_rates is None else np.asarray(workload.learning_rates)
    # The covariance of (s, m, θ) for independent z of variance 1; y enters by the gain g, with c = −(its covariance with them).
    own = np.zeros((states + 2, states + 2))
    gains = np.column_stack([inputs, np.ones(n), rates])
    seeing = np.column_stack([outputs, np.zeros((n, 2))]) / diagonal[:, None]
    diagonal_steps = transitions.ndim == 2
    steps = np.column_stack([transitions, np.full(n, beta), np.ones(n)]) if diagonal_steps else _padded(transitions, beta)
    errors = np.empty(n)
    for t, gain in enumerate(gains):
        c = own @ seeing[t]
        variance = 1 / diagonal[t] ** 2 + seeing[t] @ c
        if diagonal_steps:
            own *= np.multiply.outer(steps[t], steps[t])
            c *= steps[t]
        else:
            own, c = steps[t] @ own @ steps[t].T, steps[t] @ c
        if beta:
            own[-1] += rates[t] * own[-2]
            own[:, -1] += rates[t] * own[:, -2]
            c[-1] += rates[t] * c[-2]
        half = np.multiply.outer(gain, 0.5 * variance * gain - c)
        own += half
        own += half.T
        errors[t] = own[-1, -1]
    return errors


def dense(recursion: Recursion) -> Array:
    """The matrix, ``(n, n)``."""
    diagonal, outputs, transitions, inputs = recursion
    n = len(diagonal)
    C = np.diag(diagonal)
    states = np.zeros((outputs.shape[1], n))
    for i in range(n):
        C[i, :i] = outputs[i] @ states[:, :i]
        step = transitions[i]
        states[:, :i] = step[:, None] * states[:, :i] if transitions.ndim == 2 else step @ states[:, :i]
        states[:, i] = inputs[i]
    return C


def _squared_from_right(step: Array, G: Array) -> Array:
    """Φᵀ·G·Φ."""
    if step.ndim == 1:
        return np.asarray(G * np.multiply.outer(step, step))
    return np.asarray(step.T @ G @ step)


def _padded(transitions: Array, beta: float) -> Array:
    """Φ of (s, m, θ) but for what m adds to θ, ``(n, states + 2, states + 2)``."""
    n, states, _ = transitions.shape
    steps = np.zeros((n, states + 2, states + 2))
    steps[:, :states, :states] = transitions
    steps[:, -2, -2], steps[:, -1, -1] = beta, 1.0
    return steps
