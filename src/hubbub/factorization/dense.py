"""The strategy of least error of all, for one participation and for fixed epochs.

Letters: b residues (rounds of an epoch), k epochs, round r + e·b is epoch e of residue r; A workload, W the diagonal matrix of
weights w of its rows, M = Aᵀ·W·A, P = M⁻¹, X = CᵀC with blocks X_r of the rounds of residue r, V a positive definite k × k
block V_r for each residue, its diagonal v_r, s shifts and c weights of the poles.

For any C: tr M·X⁻¹ ≥ t² / tr V·X with t the trace of (V^(1/2)·M·V^(1/2))^(1/2), and tr V_r·X_r ≤ v_r · sensitivity², since a
client may contribute vectors with the inner products V_r / v_r. With V = H·Hᵀ, t is the sum of the singular values of
K = W^(1/2)·A·H, which is at least ⟨K, U⟩ / ‖U‖ for every U: the bound is proved by a U near the polar factor of K,
whose norm is at most 1 + δ by a Cholesky factor of (1 + δ)²·I − Uᵀ·U. At the optimum X_r is diagonal: from X_r·V_r·X_r = M_r,
and diagonal D_r with the same diagonals' sum, follows V_r = D_r⁻¹·M_r·D_r⁻¹, which the iteration averages with the V_r before.

P is tridiagonal over rounds. With the rounds of a residue side by side, P + s·V is block tridiagonal with one more pair of
blocks in its corners: the last residue of an epoch is coupled to the first of the next. Residue 0 is eliminated as a border of
the chain of the others; arrays of a sweep are ``(residues, poles, epochs, epochs)``, in O(b·k³) time a pole.

Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530 (the problem and its dual).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import softmax

from hubbub._util.checks import Array, one_of
from hubbub.factorization import toeplitz
from hubbub.factorization.anderson import fixed_point
from hubbub.factorization.bounds import of_one_client
from hubbub.factorization.certificate import bound_on_norm
from hubbub.factorization.optimized import Objective, Optimized, on_one_thread
from hubbub.factorization.pencils import Poles, inverse_root_poles, row_gram, unshifted
from hubbub.factorization.semiseparable import best_recursion, best_weights, root_of_weights, squared_errors
from hubbub.mechanism import utility
from hubbub.mechanism.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SingleParticipation,
    require_pattern,
    worst_rounds,
)
from hubbub.mechanism.strategies.dense import Dense
from hubbub.mechanism.strategies.matrices import gram_root, triangular_form
from hubbub.mechanism.strategies.semiseparable import Semiseparable
from hubbub.mechanism.strategies.strategy import Strategy
from hubbub.mechanism.workloads import Workload, require_workload

__all__ = ["optimize"]

# Beyond these numbers of rounds an optimization takes more than a few minutes, or too much memory.
_MOST_BY_RECURSION = 1_000_000
_MOST_BY_MATRIX = 4096
_MOST_IN_EPOCHS = 5000
_MOST_DECOMPOSED = 1000
# A gap with which nothing better is looked for.
_NEAR = 5e-3


@on_one_thread
def optimize(
    workload: Workload,
    *,
    participation: Participation = SingleParticipation(),  # noqa: B008 # a frozen value
    objective: Objective = "mean",
) -> Optimized[Dense | Semiseparable]:
    """The strategy of least error among all strategies, banded or not, with a proved lower bound.

    For one participation without momentum the result is streamed by some thirty buffers and needs no matrix, in O(rounds) time
    and memory; else it is a matrix. ``relative_gap`` bounds the distance from the optimum, which is larger with momentum.

    Args:
        workload: A; with momentum, of at most 4096 rounds for one participation and 1000 for more.
        participation: One participation, or ``FixedEpochs`` whose epochs fill the rounds.
        objective: ``"mean"`` or ``"max"`` of the squared errors over rounds.

    Raises:
        ValueError: An unsupported pattern or number of rounds; the message names an alternative.

    Example:
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> round(optimize(prefix_sum(rounds=8)).squared_error, 6)
        2.233272

    Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312; Choquette-Choo et al. 2023,
    https://arxiv.org/abs/2211.06530.
    """
    one_of("objective", objective, ("mean", "max"))
    n = require_workload(workload).rounds
    try:
        match require_pattern(participation):
            case FixedEpochs(epochs, b) if n > b:
                whole = FixedEpochs(min(epochs, -(-n // b)), b)
                strategy, errors, bound, iterations = _for_epochs(workload, whole, objective)
            case MinSeparation(b, most) if most > 1 and n > b:
                raise ValueError(
                    f"participation = {participation!r}: the best dense strategy is known for SingleParticipation and "
                    f"FixedEpochs only; use banded.optimize with at most {b} bands"
                )
            case _:
                strategy, errors, bound, iterations = _for_one(workload, objective)
    except (ArithmeticError, np.linalg.LinAlgError) as failure:
        if objective == "mean" or n > _MOST_DECOMPOSED:
            raise ValueError(
                f"workload: its momentum and learning rates are too uneven for float64 to find the best strategy ({failure}); "
                "use banded.optimize"
            ) from failure
        strategy, bound, iterations = Dense(np.eye(n)), 0.0, 0
        errors = utility.squared_errors(workload, strategy)
    error = float(errors.mean() if objective == "mean" else errors.max())
    # Columns of a recursion have norm 1 by construction.
    sensitivity = 1.0 if isinstance(strategy, Semiseparable) else strategy.sensitivity(participation).value
    squared, bound = error * sensitivity**2, max(bound, of_one_client(workload, participation, objective))
    if objective == "max" and isinstance(strategy, Dense) and squared > bound * (1 + _NEAR):
        strategy, squared = _least_of(strategy, squared, workload, participation)
    return Optimized(strategy, workload, participation, objective, squared, bound, "every strategy", iterations)


def _least_of(found: Dense, squared: float, workload: Workload, participation: Participation) -> tuple[Dense, float]:
    """The found strategy, or another one whose largest error is less: where few rows have the largest error, the weights of the
    others vanish at the optimum, and no longer determine C."""
    n = workload.rounds
    others: list[Strategy] = [Dense(np.eye(n)), optimize(workload, participation=participation).strategy]
    if workload.toeplitz and n <= _MOST_DECOMPOSED:
        others.append(toeplitz.optimize(workload, bands=n, participation=participation, objective="max").strategy)
    if workload.momentum and worst_rounds(participation, n)[1] == 1:
        dual = best_weights(workload, "max")
        others += [Dense(root_of_weights(workload, dual.v**power, dual.w**power)) for power in (0.7, 0.3, 0.1)]
    for other in others:
        error = float(utility.squared_errors(workload, other).max()) * other.sensitivity(participation).value ** 2
        if error < squared:
            found, squared = other if isinstance(other, Dense) else Dense(other.matrix()), error
    return found, squared


# The strategy, the squared error of each round for unit noise, the bound, and the number of evaluations.
_Found = tuple[Dense | Semiseparable, Array, float, int]


def _for_one(workload: Workload, objective: Objective) -> _Found:
    most = _MOST_BY_MATRIX if workload.momentum else _MOST_BY_RECURSION
    if workload.rounds > most:
        raise ValueError(
            f"workload.rounds = {workload.rounds}: must be at most {most:,} with momentum = {workload.momentum}; use "
            "blt.optimize or toeplitz.optimize"
        )
    if not workload.momentum:
        recursion, dual = best_recursion(workload, objective)
        return Semiseparable(*recursion), squared_errors(workload, recursion), dual.bound, dual.evaluations
    dual = best_weights(workload, objective)
    strategy = Dense(root_of_weights(workload, dual.v, dual.w))
    return strategy, utility.squared_errors(workload, strategy), dual.bound, dual.evaluations


def _for_epochs(workload: Workload, pattern: FixedEpochs, objective: Objective) -> _Found:
    n, k, b = workload.rounds, pattern.epochs, pattern.rounds_per_epoch
    if n != k * b:
        raise ValueError(
            f"workload.rounds = {n}: must be epochs · rounds_per_epoch = {k * b} for {pattern!r}; plan whole epochs, or use "
            "banded.optimize"
        )
    if workload.momentum and objective == "max":
        raise ValueError(
            f"workload.momentum = {workload.momentum}: the largest error over epochs needs a momentum of 0 here; optimize the "
            "mean, or use banded.optimize"
        )
    most = _MOST_DECOMPOSED if workload.momentum or objective == "max" or b == 1 else _MOST_IN_EPOCHS
    if n > most:
        raise ValueError(
            f"workload.rounds = {n}: must be at most {most} for {pattern!r}, objective = {objective!r} and momentum = "
            f"{workload.momentum}; use banded.optimize"
        )
    C, bound, iterations = best_for_epochs(workload, k, b, objective)
    strategy = Dense(C)
    return strategy, utility.squared_errors(workload, strategy), bound, iterations


class _Swept(NamedTuple):
    """For the chain: the factors −G_r⁻¹·E_{r−1} from row to row, and T_rr; its coupling to the border; the border's inverse."""

    leads: Array
    own: Array
    border: Array
    first: Array


def inverse_blocks(gram: Array, V: Array, poles: Poles) -> Array:
    """The k × k block of each residue in Σ c_q·(P + s_q·V)⁻¹, ``(residues, epochs, epochs)``; ``gram``: the bands of P."""
    swept = _sweep(gram, V, poles)
    blocks = np.empty_like(V)
    blocks[0] = np.einsum("q,qij->ij", poles.weights, swept.first)
    through = swept.border @ swept.first[None] @ np.swapaxes(swept.border, 2, 3)
    blocks[1:] = np.einsum("q,rqij->rij", poles.weights, swept.own + through)
    return blocks


def whole_inverse(gram: Array, V: Array, poles: Poles) -> Array:
    """Σ c_q·(P + s_q·V)⁻¹ in the order of rounds, ``(rounds, rounds)``, in O(poles · rounds² · k) time."""
    residues, epochs, _ = V.shape
    n, c = residues * epochs, poles.weights
    swept = _sweep(gram, V, poles)
    X = np.zeros((residues, epochs, residues, epochs))
    row = np.zeros((len(c), epochs, n))
    for r in range(1, residues):
        # Row r of the chain's inverse, up to its own block: residues one to r side by side.
        before = (r - 1) * epochs
        row[:, :, :before] = swept.leads[r - 1] @ row[:, :, :before]
        row[:, :, before : before + epochs] = swept.own[r - 1]
        X[r, :, 1 : r + 1] = np.tensordot(c, row[:, :, : r * epochs], 1).reshape(epochs, r, epochs)
    # The border: (−R, I)·first·(−R, I)ᵀ, all poles in one product.
    ends = np.concatenate([np.broadcast_to(np.eye(epochs), (1, len(c), epochs, epochs)), -swept.border])
    left = (ends @ (c[:, None, None] * swept.first)).transpose(0, 2, 1, 3).reshape(n, -1)
    lower = np.tril(X.reshape(n, n))
    whole = lower + np.tril(lower, -1).T + left @ ends.transpose(0, 2, 1, 3).reshape(n, -1).T
    # From residue by residue to round by round.
    whole = whole.reshape(residues, epochs, residues, epochs).transpose(1, 0, 3, 2).reshape(n, n)
    return np.asarray(0.5 * (whole + whole.T))


def _sweep(gram: Array, V: Array, poles: Poles) -> _Swept:
    residues, epochs, _ = V.shape
    main = gram[0].reshape(epochs, residues).T
    beside = gram[1].reshape(epochs, residues).T
    shape = (residues - 1, len(poles.shifts), epochs, epochs)
    leads, own, border = np.empty(shape), np.empty(shape), np.empty(shape)
    pivots = np.empty(shape)
    eye = np.arange(epochs)
    # To residue 0 of the next epoch from the last residue of this one.
    corner = np.zeros((epochs, epochs))
    corner[eye[:-1], eye[1:]] = beside[-1, :-1]

    def diagonal(r: int) -> Array:
        block: Array = np.multiply.outer(poles.shifts, V[r])
        block[:, eye, eye] += main[r]
        return block

    for r in range(residues - 1, 0, -1):
        block = diagonal(r)
        if r < residues - 1:
            block -= np.multiply.outer(beside[r], beside[r]) * pivots[r]
        pivots[r - 1] = np.linalg.inv(block)
    leads[:] = -pivots * beside[:-1, None, None, :]
    own[0], column = pivots[0], pivots[0] * beside[0]
    border[0] = column
    for r in range(1, residues - 1):
        own[r] = pivots[r] + leads[r] @ own[r - 1] @ np.swapaxes(leads[r], 1, 2)
        border[r] = column = leads[r] @ column
    # The coupling of the last residue, carried back along the chain.
    product = np.broadcast_to(corner, shape[1:])
    for r in range(residues - 2, -1, -1):
        border[r] += own[r] @ product
        product = np.swapaxes(leads[r], 1, 2) @ product
    first = diagonal(0) - beside[0][:, None] * border[0] - corner.T @ border[-1]
    return _Swept(leads, own, border, np.linalg.inv(first))


# Up to this many rounds a singular value decomposition is quicker than sums over poles.
_FEW_ROUNDS = 200
_POLES = 1e-9
# Of the logarithms of V and w; the gap is quadratic in the former, linear in the latter.
_RESIDUAL = {"mean": 5e-5, "max": 1e-8}
_EVALUATIONS = {"mean": 80, "max": 300}
_LEAST_WEIGHT = 1e-10
_EPSILON = float(np.finfo(np.float64).eps)


class _Problem(NamedTuple):
    workload: Workload
    epochs: int
    residues: int
    by_poles: bool


@np.errstate(invalid="ignore", divide="ignore")
def best_for_epochs(workload: Workload, epochs: int, residues: int, objective: str) -> tuple[Array, float, int]:
    """The best C, ``(rounds, rounds)``, a bound at sensitivity 1 on every strategy, and the number of evaluations.

    For k = ``epochs`` participations exactly b = ``residues`` rounds apart; ``workload.rounds`` must be k·b.
    O(b·k³) time an iteration for the mean without momentum, else O(rounds³).
    """
    n = workload.rounds
    by_poles = objective == "mean" and not workload.momentum and residues > 1 and n > _FEW_ROUNDS
    problem = _Problem(workload, epochs, residues, by_poles)
    size = residues * epochs**2

    def parts(point: Array) -> tuple[Array, Array]:
        logarithms = point[:size].reshape(residues, epochs, epochs)
        V = _constant_diagonal(_with_eigenvalues(np.exp, 0.5 * (logarithms + np.swapaxes(logarithms, 1, 2))))
        return V, np.full(n, 1 / n) if objective == "mean" else _shares(point[size:])

    def improved(point: Array) -> Array:
        V, w = parts(point)
        X, errors = _blocks(problem, V, w)
        M = X @ V @ X
        diagonal_roots = np.sqrt(np.diagonal(M, axis1=1, axis2=2))
        # V_r = D_r⁻¹·M_r·D_r⁻¹ for the D_r of trace 1 that makes its diagonal constant.
        D = diagonal_roots / diagonal_roots.sum(axis=1, keepdims=True)
        rebalanced = M / (D[:, :, None] * D[:, None, :])
        new = _with_eigenvalues(np.log, _constant_diagonal(_mean_of(V, rebalanced))).ravel()
        return new if objective == "mean" else np.concatenate([new, np.log(_shares(np.log(errors)))])

    start = np.zeros((residues, epochs, epochs))
    rising = np.sqrt(n - np.arange(n)).reshape(epochs, residues).mean(axis=0)
    start[:, np.arange(epochs), np.arange(epochs)] = np.log(rising / rising.sum())[:, None]
    beginning = start.ravel() if objective == "mean" else np.concatenate([start.ravel(), np.full(n, -math.log(n))])
    found = fixed_point(improved, beginning, tolerance=_RESIDUAL[objective], most=_EVALUATIONS[objective])
    V, w = parts(found.point)
    return _strategy(problem, V, w), _proved(problem, V, w), found.evaluations


def _proved(problem: _Problem, V: Array, w: Array) -> float:
    """t² / Σ v_r less an allowance for rounding; 0 if that leaves nothing."""
    n, b, k = problem.workload.rounds, problem.residues, problem.epochs
    roots = np.linalg.cholesky(V)
    weighted = np.sqrt(w)[:, None] * problem.workload.matrix()
    by_residue = weighted.reshape(n, k, b).transpose(2, 0, 1)
    K = by_residue @ roots
    if problem.by_poles:
        # The polar factor is W^(1/2)·A·X⁻¹·H⁻ᵀ.
        X = whole_inverse(*_pencil(problem, V, w))
        solved = cho_solve(cho_factor(X), weighted.T).T.reshape(n, k, b).transpose(2, 0, 1)
        U = np.swapaxes(np.linalg.solve(roots, np.swapaxes(solved, 1, 2)), 1, 2)
    else:
        left, _, right = np.linalg.svd(K.transpose(1, 0, 2).reshape(n, n))
        U = (left @ right).reshape(n, b, k).transpose(1, 0, 2)
    # Entries of A and K are sums of at most n + k numbers; those of U are exact by definition.
    lost = 4 * (n + k) * _EPSILON * float(np.linalg.norm(by_residue @ np.abs(roots))) * float(np.linalg.norm(U))
    reached = float(np.vdot(K, U)) - lost
    # The Cholesky factors are exact by definition, too: V is their product.
    sums = math.fsum(np.square(roots).sum(axis=2).max(axis=1)) * math.fsum(w) * (1 + 4 * (k + 2) * _EPSILON)
    return max(0.0, reached / bound_on_norm(U.transpose(1, 0, 2).reshape(n, n))) ** 2 / sums


def _blocks(problem: _Problem, V: Array, w: Array) -> tuple[Array, Array]:
    """The diagonal blocks of the optimal X for V and w, and w · the errors of its rows (empty where they are not needed)."""
    if problem.by_poles:
        return inverse_blocks(*_pencil(problem, V, w)), np.empty(0)
    root, left, values = _decomposed(problem, V, w)
    return np.swapaxes(root, 1, 2) @ root, np.square(left) @ values


def _decomposed(problem: _Problem, V: Array, w: Array) -> tuple[Array, Array, Array]:
    """A root of X by residue, S^(1/2)·R·H⁻¹ ``(residues, rounds, epochs)``; U and S of W^(1/2)·A·H = U·S·R, where V = H·Hᵀ."""
    n, b, k = problem.workload.rounds, problem.residues, problem.epochs
    roots, weighted = np.linalg.cholesky(V), np.sqrt(w)[:, None] * problem.workload.matrix()
    K = weighted.reshape(n, k, b).transpose(2, 0, 1) @ roots
    left, values, right = np.linalg.svd(K.transpose(1, 0, 2).reshape(n, n))
    root = (np.sqrt(values)[:, None] * right).reshape(n, b, k).transpose(1, 0, 2) @ np.linalg.inv(roots)
    return root, left, values


def _pencil(problem: _Problem, V: Array, w: Array) -> tuple[Array, Array, Poles]:
    """P, V and poles for their spectrum; their interval affects the tightness of the bound, not its validity."""
    gram = row_gram(problem.workload.inverse_bands(), 1 / w)
    # V_r is at most k·v_r·I, and no eigenvalue of M·V above its trace.
    lowest = 1 / (problem.epochs * float(unshifted(gram) @ np.tile(V[:, 0, 0], problem.epochs)))
    highest = 4 * float(gram[0].max()) / float(np.linalg.eigvalsh(V)[:, 0].min())
    return gram, V, inverse_root_poles(lowest, highest, _POLES)


def _strategy(problem: _Problem, V: Array, w: Array) -> Array:
    """C of sensitivity about 1 from the optimal X, with inner products within a residue set to 0."""
    n, b = problem.workload.rounds, problem.residues
    root: Array | None = None
    if problem.by_poles:
        X = whole_inverse(*_pencil(problem, V, w))
    else:
        root = _root(problem, V, w)
        X = root.T @ root
    factors = np.empty(n)
    for r in range(b):
        own = np.arange(r, n, b)
        factors[own] = float(X[own, own].sum()) ** -0.5
        X[np.ix_(own, own)] = np.diag(X[own, own])
    try:
        return gram_root(X * np.multiply.outer(factors, factors))
    except ValueError:
        # Far from the optimum that may not be positive definite; with those products, the sensitivity is above 1.
        return triangular_form((_root(problem, V, w) if root is None else root) * factors)


def _root(problem: _Problem, V: Array, w: Array) -> Array:
    """Y with X = YᵀY, ``(rounds, rounds)``."""
    n = problem.workload.rounds
    return _decomposed(problem, V, w)[0].transpose(1, 2, 0).reshape(n, n)


def _mean_of(V: Array, other: Array) -> Array:
    """The geometric mean of positive definite matrices, V^(1/2)·(V^(−1/2)·V′·V^(−1/2))^(1/2)·V^(1/2)."""
    root, inverse = _with_eigenvalues(np.sqrt, V), _with_eigenvalues(lambda values: 1 / np.sqrt(values), V)
    return np.asarray(root @ _with_eigenvalues(np.sqrt, inverse @ other @ inverse) @ root)


def _constant_diagonal(V: Array) -> Array:
    """Blocks with the diagonal of each made constant by scaling rows and columns, and the sum over residues 1."""
    diagonal = np.diagonal(V, axis1=1, axis2=2)
    means = np.exp(np.log(diagonal).mean(axis=1))
    factors = np.sqrt(means[:, None] / diagonal)
    return np.asarray(V * factors[:, :, None] * factors[:, None, :] / means.sum())


def _with_eigenvalues(function: Callable[[Array], Array], V: Array) -> Array:
    """The symmetric matrices with the function applied to their eigenvalues."""
    values, vectors = np.linalg.eigh(V)
    return np.asarray((vectors * function(values)[:, None, :]) @ np.swapaxes(vectors, 1, 2))


def _shares(logarithms: Array) -> Array:
    """Weights with a sum of 1, none of them below the least."""
    shares = np.maximum(softmax(logarithms), _LEAST_WEIGHT / len(logarithms))
    return np.asarray(shares / shares.sum())
