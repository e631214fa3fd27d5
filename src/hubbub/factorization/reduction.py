"""Fewer states for nearly the same lower-triangular matrix: balanced truncation that changes from round to round.

Letters: C_ii = d_i and C_ij = a_i·Φ_{i−1}···Φ_{j+1}·b_j below the diagonal, states s of round t; K = Σ of what earlier rounds
make of s, Q = Σ of what s makes of rounds from t on, both ``(states, states)`` for each round. The singular values of a root of
Q times a root of K are those of the block of C below and left of round t; the states that belong to the largest are kept.

Source: Chahlaoui and Van Dooren 2005, "Model reduction of time-varying systems", https://doi.org/10.1007/3-540-27909-1_5.
"""

import numpy as np

from hubbub._checks import Array
from hubbub.factorization.recursions import Recursion, column_norms

__all__ = ["reduced"]

# Singular values below this part of the largest are rounding.
_RANK = 1e-13
# Rounds taken together in batched linear algebra.
_TOGETHER = 500


def reduced(recursion: Recursion, states: int) -> Recursion:
    """The matrix with ``states`` states instead, columns scaled to norm 1; its transitions are upper triangular.

    Args:
        recursion: With diagonal transitions.
        states: At least 1; at most those of ``recursion``.
    """
    diagonal, outputs, transitions, inputs = recursion
    n, before = outputs.shape
    observed = np.empty((n, before, before))
    own = np.zeros((before, before))
    for t in range(n - 1, -1, -1):
        own = own * np.multiply.outer(transitions[t], transitions[t]) + np.multiply.outer(outputs[t], outputs[t])
        observed[t] = own
    reached = np.zeros((before, before))
    to, back = np.empty((n, states, before)), np.empty((n, before, states))
    for first in range(0, n, _TOGETHER):
        part = slice(first, min(first + _TOGETHER, n))
        made = np.empty((part.stop - first, before, before))
        for t in range(first, part.stop):
            made[t - first] = reached
            reached = reached * np.multiply.outer(transitions[t], transitions[t]) + np.multiply.outer(inputs[t], inputs[t])
        to[part], back[part] = _projections(made, observed[part], states)
    a = np.einsum("ti,tij->tj", outputs, back)
    b = np.zeros((n, states))
    b[:-1] = np.einsum("tij,tj->ti", to[1:], inputs[:-1])
    mixing = np.zeros((n, states, states))
    mixing[:-1] = to[1:] @ (transitions[:-1, :, None] * back[:-1])
    return _unit_columns(_triangular(Recursion(diagonal, a, mixing, b)))


def _projections(made: Array, observed: Array, states: int) -> tuple[Array, Array]:
    """Of each round the maps to the states that matter most and back."""
    reach, see = _roots(made), _roots(observed)
    left, values, right = np.linalg.svd(np.swapaxes(see, 1, 2) @ reach)
    values = values[:, :states]
    known = values > _RANK * np.maximum(values[:, :1], 1e-300)
    roots = np.where(known, 1 / np.sqrt(np.where(known, values, 1.0)), 0.0)
    to = roots[:, :, None] * (np.swapaxes(left[:, :, :states], 1, 2) @ np.swapaxes(see, 1, 2))
    back = (reach @ np.swapaxes(right[:, :states], 1, 2)) * roots[:, None, :]
    return to, back


def _roots(squares: Array) -> Array:
    """R with R·Rᵀ the given semidefinite matrices."""
    values, vectors = np.linalg.eigh(squares)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])


def _triangular(recursion: Recursion) -> Recursion:
    """The same matrix in orthogonally turned states, with upper-triangular transitions: fewer products a step."""
    diagonal, outputs, transitions, inputs = recursion
    n, states = outputs.shape
    a, mixing, b = np.empty_like(outputs), np.empty_like(transitions), np.empty_like(inputs)
    turn = np.eye(states)
    for t in range(n):
        a[t] = outputs[t] @ turn
        turn, mixing[t] = np.linalg.qr(transitions[t] @ turn)
        b[t] = inputs[t] @ turn
    return Recursion(diagonal, a, np.triu(mixing), b)


def _unit_columns(recursion: Recursion) -> Recursion:
    factors = column_norms(recursion) ** -0.5
    diagonal, outputs, transitions, inputs = recursion
    return Recursion(diagonal * factors, outputs, transitions, inputs * factors[:, None])
