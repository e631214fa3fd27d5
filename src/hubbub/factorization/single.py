"""The least error of all strategies under one participation, and the strategy that reaches it.

Letters: A workload, W and V diagonal matrices of weights w and v that prove the bound, U·S·R a singular value decomposition of
W^(1/2)·A·V^(1/2), so that X = V^(−1/2)·Rᵀ·S·R·V^(−1/2) is optimal where the weights are.

Source: Denisov et al. 2022, https://arxiv.org/abs/2202.08312; for the largest error the least value is the square of the norm
γ₂ of A, see Edmonds, Nikolov and Ullman 2020, https://arxiv.org/abs/1911.08339.
"""

import numpy as np
from scipy.linalg import solve_triangular

from hubbub._checks import Array
from hubbub.factorization.diagonal import Dual, Effort, alone, maximize
from hubbub.factorization.normal_form import triangular_form
from hubbub.factorization.pencils import row_gram
from hubbub.factorization.recursions import Recursion, of_poles
from hubbub.workloads import Workload

__all__ = ["best_recursion", "best_weights", "root_of_weights", "row_errors"]

# The gap is quadratic in what is left of the weights of a mean, but linear for the largest error.
_EFFORTS = {"mean": Effort(5e-5, 150, 1e-10), "max": Effort(1e-9, 200, 1e-11)}


def best_weights(workload: Workload, objective: str) -> Dual:
    """The weights of the optimum and the bound that they prove, in O(rounds) time an iteration."""
    return maximize(workload, alone(workload.rounds), objective, _EFFORTS[objective])


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


def row_errors(workload: Workload, C: Array) -> Array:
    """The squared norms of the rows of A·C⁻¹, ``(n,)``."""
    return np.asarray(np.square(solve_triangular(C, workload.matrix().T, lower=True, trans="T")).sum(axis=0))
