"""Time-varying buffers: the optimum for one participation, streamed by a few states, and its reduction to fewer.

Letters: C_ii = d_i and C_ij = a_i·Φ_{i−1}···Φ_{j+1}·b_j below the diagonal, with d ``(n,)``, a outputs and b inputs
``(n, states)``, Φ transitions, ``(n, states)`` where they are diagonal or ``(n, states, states)``; y = C⁻¹·z is
y_t = (z_t − a_t·s_t) / d_t with states s_{t+1} = Φ_t·s_t + b_t·y_t. A workload, η learning rates, θ = A·y the error of the
models; W and V diagonal matrices of weights w and v that prove the bound.

With U·S·R a singular value decomposition of W^(1/2)·A·V^(1/2), X = V^(−1/2)·Rᵀ·S·R·V^(−1/2) is optimal where the weights are.
Without momentum X = Σ c_q·(P + s_q·V)⁻¹, of which each term has rows that are multiples of the row before: Z_{i+1,j} = ρ_i·Z_ij
for i ≥ j, so that a state for each pole streams it.

Fewer states give nearly the same matrix, by balanced truncation that changes from round to round: with K the Gram
matrix of s by earlier rounds, and Q that of rounds from t on by s, both ``(states, states)`` for each round, the singular
values of a root of Q times a root of K are those of the block of C below and left of round t. The states of the largest are
kept.

Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312; for the largest error the least value is the square of the norm
γ₂ of A, see Edmonds, Nikolov and Ullman 2020, https://arxiv.org/abs/1911.08339; Chahlaoui and Van Dooren 2005, "Model reduction
of time-varying systems", https://doi.org/10.1007/3-540-27909-1_5, for fewer states.
"""

import math

import numpy as np

from hubbub._util.checks import Array, integer, one_of
from hubbub.factorization.diagonal import Dual, Effort, maximize
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.factorization.pencils import Poles, pivots, row_gram
from hubbub.mechanism.participation import FixedEpochs, Participation, SingleParticipation, worst_rounds
from hubbub.mechanism.strategies.matrices import triangular_form
from hubbub.mechanism.strategies.semiseparable import Recursion, Semiseparable, column_norms
from hubbub.mechanism.workloads import Workload, require_workload

__all__ = ["optimize"]

# The reduction takes memory of rounds · poles².
_MOST_ROUNDS = 20_000


def of_poles(gram: Array, v: Array, poles: Poles) -> Recursion:
    """The lower-triangular C with CᵀC = D·Σ c_q·(P + s_q·V)⁻¹·D, one state a pole, in O(rounds · poles²) time.

    D is diagonal and such that every column of C has norm 1; ``gram`` holds the two bands of a tridiagonal P.
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


def squared_errors(workload: Workload, recursion: Recursion) -> Array:
    """``(n,)``: the squared norm of each row of A·C⁻¹, A without momentum, in O(n · states²) time for diagonal transitions."""
    diagonal, outputs, transitions, inputs = recursion
    n, states = outputs.shape
    rates = np.ones(n) if workload.learning_rates is None else np.asarray(workload.learning_rates)
    # The covariance of (s, θ) for independent z of variance 1; y enters by the gain g, with c = −(its covariance with them).
    own = np.zeros((states + 1, states + 1))
    gains = np.column_stack([inputs, rates])
    seeing = np.column_stack([outputs, np.zeros(n)]) / diagonal[:, None]
    diagonal_steps = transitions.ndim == 2
    # Φ of (s, θ).
    if diagonal_steps:
        steps = np.column_stack([transitions, np.ones(n)])
    else:
        steps = np.zeros((n, states + 1, states + 1))
        steps[:, :states, :states] = transitions
        steps[:, -1, -1] = 1.0
    errors = np.empty(n)
    for t, gain in enumerate(gains):
        c = own @ seeing[t]
        variance = 1 / diagonal[t] ** 2 + seeing[t] @ c
        if diagonal_steps:
            own *= np.multiply.outer(steps[t], steps[t])
            c *= steps[t]
        else:
            own, c = steps[t] @ own @ steps[t].T, steps[t] @ c
        half = np.multiply.outer(gain, 0.5 * variance * gain - c)
        own += half
        own += half.T
        errors[t] = own[-1, -1]
    return errors


# The gap is quadratic in the residual of the weights for the mean, but linear for the largest error.
_EFFORTS = {"mean": Effort(5e-5, 150, 1e-10), "max": Effort(1e-9, 200, 1e-11)}


def best_weights(workload: Workload, objective: str) -> Dual:
    """The weights of the optimum and the bound proved by them, in O(rounds) time an iteration."""
    # One participation: each round a class of its own.
    return maximize(workload, np.arange(workload.rounds), objective, _EFFORTS[objective])


def best_recursion(workload: Workload, objective: str) -> tuple[Recursion, Dual]:
    """The optimal C with columns of norm 1, streamed by one state for each of some thirty poles; without momentum only."""
    dual = best_weights(workload, objective)
    return of_poles(row_gram(workload.inverse_bands(), 1 / dual.w), dual.v, dual.poles), dual


def root_of_weights(workload: Workload, v: Array, w: Array) -> Array:
    """The lower-triangular C with columns of norm 1 for the dual weights v and w, ``(n, n)``, in O(n³) time."""
    root = np.sqrt(v)
    _, S, R = np.linalg.svd(np.sqrt(w)[:, None] * workload.matrix() * root)
    # S^(1/2)·R·V^(−1/2) has the inner products of X; the square of small singular values would be lost in X itself.
    C = triangular_form(np.sqrt(S)[:, None] * R / root)
    return np.asarray(C / np.linalg.norm(C, axis=0))


# Singular values below this part of the largest are rounding.
_RANK = 1e-13
# Rounds taken together in batched linear algebra.
_TOGETHER = 500


def reduced(recursion: Recursion, states: int) -> Recursion:
    """The matrix with ``states`` states instead, columns scaled to norm 1; its transitions are upper triangular."""
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
        # The maps to the states of the largest singular values and back.
        reach, see = _roots(made), _roots(observed[part])
        left, values, right = np.linalg.svd(np.swapaxes(see, 1, 2) @ reach)
        values = values[:, :states]
        known = values > _RANK * np.maximum(values[:, :1], 1e-300)
        roots = np.where(known, 1 / np.sqrt(np.where(known, values, 1.0)), 0.0)
        to[part] = roots[:, :, None] * (np.swapaxes(left[:, :, :states], 1, 2) @ np.swapaxes(see, 1, 2))
        back[part] = (reach @ np.swapaxes(right[:, :states], 1, 2)) * roots[:, None, :]
    a = np.einsum("ti,tij->tj", outputs, back)
    b = np.zeros((n, states))
    b[:-1] = np.einsum("tij,tj->ti", to[1:], inputs[:-1])
    mixing = np.zeros((n, states, states))
    mixing[:-1] = to[1:] @ (transitions[:-1, :, None] * back[:-1])
    # In orthogonally turned states transitions are upper triangular: fewer products a step.
    turn = np.eye(states)
    for t in range(n):
        a[t] = a[t] @ turn
        turn, mixing[t] = np.linalg.qr(mixing[t] @ turn)
        b[t] = b[t] @ turn
    few = Recursion(diagonal, a, np.triu(mixing), b)
    factors = column_norms(few) ** -0.5
    return Recursion(few.diagonal * factors, few.outputs, few.transitions, few.inputs * factors[:, None])


def _roots(squares: Array) -> Array:
    """R with R·Rᵀ the given semidefinite matrices."""
    values, vectors = np.linalg.eigh(squares)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])


@on_one_thread
@np.errstate(under="ignore")
def optimize(
    workload: Workload,
    *,
    buffers: int = 6,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
) -> Optimized[Semiseparable]:
    """The optimal strategy for one participation, reduced to a few buffers.

    Six buffers come within a few millionths of the least error of any strategy at 2000 rounds, where the best BLT of the same
    memory, whose coefficients are the same in all rounds, is 6.8 % above it. Sensitivity and error are those of the
    reduced strategy.

    Args:
        workload: A, without momentum, of at most 20,000 rounds.
        buffers: At least 1.
        participation: One participation; for more, few buffers are not enough.
        objective: ``"mean"`` or ``"max"`` of the squared errors over rounds.

    Raises:
        ValueError: An unsupported workload or participation; the message names an alternative.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> result = optimize(prefix_sum(rounds=64), buffers=3)
        >>> result.strategy.memory_rows, result.relative_gap < 1e-4
        (3, True)
    """
    one_of("objective", objective, ("mean", "max"))
    rounds = require_workload(workload).rounds
    buffers = integer("buffers", buffers, at_least=1)
    # Of one epoch that is shorter than the run, rounds that no client may join need no noise: the bound would be false.
    idle = isinstance(participation, FixedEpochs) and participation.rounds_per_epoch < rounds
    if idle or worst_rounds(participation, rounds)[1] > 1:
        raise ValueError(
            f"participation = {participation!r}: buffers that change from round to round are optimized for "
            "SingleParticipation() only; use banded, blt, or dense.optimize"
        )
    if workload.momentum:
        raise ValueError(f"workload.momentum = {workload.momentum}: must be 0 here; use dense.optimize or blt.optimize")
    if rounds > _MOST_ROUNDS:
        raise ValueError(
            f"workload.rounds = {rounds}: must be at most {_MOST_ROUNDS} here; use dense.optimize, which keeps one "
            "buffer for each of some forty poles, or blt.optimize"
        )
    full, dual = best_recursion(workload, objective)
    few = reduced(full, buffers) if buffers < full.outputs.shape[1] else full
    errors = squared_errors(workload, few)
    squared_sensitivity = float(column_norms(few).max())
    error = float(errors.mean() if objective == "mean" else errors.max())
    squared, found = error * squared_sensitivity, Semiseparable(*few)
    return Optimized(found, workload, participation, objective, squared, dual.bound, "every strategy", dual.evaluations)
