"""Any C, tall or not triangular, as the one square lower-triangular C that has the same inner products of columns.

The guarantee depends on C only through X = CᵀC, and the error of the best decoder A·C⁺ is tr(A·X⁻¹·Aᵀ): so the triangular
matrix with the same X has the same sensitivity to every pattern, the error of the best decoder, and can be streamed.
"""

import numpy as np
import numpy.typing as npt

from hubbub._checks import Array, real_array

__all__ = ["gram_root", "triangular_form"]


def gram_root(X: npt.ArrayLike) -> Array:
    """The lower-triangular C with CᵀC = X and a positive diagonal, ``(n, n)``.

    A Cholesky factor L of X itself has L·Lᵀ = X, which is another matrix with other column norms: the order of rows and columns
    is reversed before and after.

    Raises:
        ValueError: X is not square, not symmetric, or not positive definite.

    Example:
        >>> C = gram_root([[1.25, 0.5], [0.5, 1.0]])
        >>> C
        array([[1. , 0. ],
               [0.5, 1. ]])
    """
    gram = real_array("X", X, ndim=2)
    if gram.shape[0] != gram.shape[1] or not np.allclose(gram, gram.T, rtol=1e-10, atol=1e-12 * float(np.abs(gram).max())):
        raise ValueError(f"X has shape {gram.shape}: must be symmetric")
    try:
        root = np.linalg.cholesky(gram[::-1, ::-1])
    except np.linalg.LinAlgError as error:
        raise ValueError("X is not positive definite: two rounds of C are the same, or C has no full rank") from error
    return np.ascontiguousarray(root[::-1, ::-1].T)


def triangular_form(C: npt.ArrayLike) -> Array:
    """The lower-triangular matrix with the same inner products of columns as C, ``(rounds, rounds)``.

    Args:
        C: ``(rows, rounds)``, of full column rank.

    Raises:
        ValueError: C has not full column rank.

    Example:
        >>> triangular_form([[1, 0], [0, 1], [1, 1]]).round(3)
        array([[1.225, 0.   ],
               [0.707, 1.414]])
    """
    strategy = real_array("C", C, ndim=2)
    if strategy.shape[0] < strategy.shape[1]:
        raise ValueError(f"C has shape {strategy.shape}: must have at least as many rows as rounds")
    # The triangle of a QR factorization of the reversed columns: more accurate than by way of the squares in X.
    triangle: Array = np.linalg.qr(strategy[:, ::-1]).R[::-1, ::-1]
    triangle = triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0)[:, None]
    if (np.diag(triangle) <= 1e-13 * float(np.abs(triangle).max())).any():
        raise ValueError("C has not full column rank: some round is not hidden by noise of its own")
    return np.ascontiguousarray(np.tril(triangle))
