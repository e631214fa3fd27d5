"""The error of a banded strategy and its gradient, in O(n·b²) time and O(n·b) memory, for any workload with a banded inverse.

Letters: C strategy with b bands, here ``(n, b)`` with entry [j, d] that of row j + d and column j (0 where j + d ≥ n); A
workload with lower-banded A⁻¹; K = C·A⁻¹, lower banded too; B = K⁻¹ = A·C⁻¹; w weights of the rows of B; P = B·Bᵀ.

The rows of B are a moving average of the ones before: with the rows of K in blocks, Kd of which is on the diagonal and Ko to
its left, B_new = L·I_new − H·B_win, where L = Kd⁻¹, H = L·Ko, and ``win`` are the rows that the band reaches back to. Forward,
that gives the band of P, whose diagonal is the error of each query. Backward, it gives S, which is how the error of all later
rows depends on the rows of a window: S_win ← S_win − Hᵀ·S_new,win − S_win,new·H + Hᵀ·S_new,new·H. The gradient of
f = Σ w_i·‖B_i‖² by K is −2·Lᵀ·S_new,·P on the band of K. Three products of a thin block with a window: 6·n·b² flops in all.
"""

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from scipy.linalg.blas import dsyr2k
from scipy.linalg.lapack import dtrtri

from hubbub._util.checks import Array

# Of an error, what rounding may take from it.
_LOST = 1e-9

# Of the errors of all rows: a value, and its gradient by them.
Weigh = Callable[[Array], tuple[float, Array]]


class _Band:
    """Entries near the diagonal of a square matrix; [j, i − j + above] is (i, j), which makes dense blocks views."""

    def __init__(self, rounds: int, above: int, below: int) -> None:
        self.store, self.above = np.zeros((rounds, above + below + 1)), above

    def transposed(self, columns: slice, rows: slice) -> Array:
        """A view of the transpose of the block, ``(columns, rows)``, each row of it contiguous."""
        stride = self.store.shape[1] - 1
        first = self.above + rows.start + columns.start * stride
        shape = (columns.stop - columns.start, rows.stop - rows.start)
        view: Array = as_strided(self.store.reshape(-1)[first:], shape, (8 * stride, 8))
        return view


class BandedError:
    """f(C) = Σ w_i·‖(A·C⁻¹)_i‖² for banded C, with its gradient. Holds about six arrays of ``(rounds, bands)`` to work in.

    ``inverse_bands`` are those of A⁻¹ from :meth:`hubbub.mechanism.workloads.Workload.inverse_bands`, ``block`` the rows of K
    at a time.
    """

    def __init__(self, inverse_bands: Array, weights: Array, bands: int, block: int | None = None) -> None:
        self.inverse_bands, self.weights, self.bands = inverse_bands, weights, bands
        self.rounds = n = inverse_bands.shape[1]
        reach = min(n, bands - 1 + len(inverse_bands) - 1)
        self.block = t = min(n, block or int(np.clip(reach // 6, 48, 96)))
        self.reach = max(reach, t)
        self._K, self._G = (_Band(n, t, self.reach + t) for _ in range(2))
        self._P = _Band(n, self.reach + t, self.reach + t)
        self.errors = np.empty(n)
        self.column_norms = np.empty(n)

    def __call__(self, C: Array, weigh: Weigh | None = None) -> tuple[float, Array]:
        """f and its gradient by the entries of C, ``(rounds, bands)``; ``weigh``: of another function of the errors."""
        inverse, transfer = self._forward(C)
        value, self.weights = weigh(self.errors) if weigh else (float(self.weights @ self.errors), self.weights)
        if not np.isfinite(value):
            return np.inf, np.zeros_like(C)
        self._backward(inverse, transfer)
        # By the entries of C: the adjoint of K = C·A⁻¹.
        n, above = self.rounds, self._G.above
        G = self._G.store[:, above : above + self.reach + 1]
        gradient: Array = G[:, : self.bands] * self.inverse_bands[0][:, None]
        for e, diagonal in enumerate(self.inverse_bands[1:], start=1):
            width = min(self.bands, G.shape[1] - e)
            gradient[e:, :width] += G[: n - e, e : e + width] * diagonal[: n - e, None]
        return value, gradient

    def squared_errors(self, C: Array) -> Array:
        """‖(A·C⁻¹)_i‖² of each row, ``(rounds,)``."""
        self._forward(C)
        return self.errors.copy()

    def _blocks(self) -> list[tuple[int, int]]:
        return [(r, min(r + self.block, self.rounds)) for r in range(0, self.rounds, self.block)]

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, C: Array) -> tuple[list[Array], list[Array]]:
        """The band of P and the error of each query; L and H of each block. A step too far overflows, which is its answer."""
        # K = C·A⁻¹.
        n, above = self.rounds, self._K.above
        K = self._K.store[:, above : above + self.reach + 1]
        K[:, self.bands :] = 0.0
        np.multiply(C, self.inverse_bands[0][:, None], out=K[:, : self.bands])
        for e, diagonal in enumerate(self.inverse_bands[1:], start=1):
            width = min(self.bands, K.shape[1] - e)
            K[: n - e, e : e + width] += C[e:, :width] * diagonal[: n - e, None]
        inverse, transfer = [], []
        for r, e in self._blocks():
            new, win = slice(r, e), slice(max(0, r - self.reach), r)
            L, info = dtrtri(np.asfortranarray(self._K.transposed(new, new).T), lower=1)
            H = L @ self._K.transposed(win, new).T
            own = L @ L.T
            least = np.diagonal(own) * (1 - _LOST)
            if r:
                coupling = self._P.transposed(win, new)
                np.matmul(self._P.transposed(win, win), -H.T, out=coupling)
                self._P.transposed(new, win)[:] = coupling.T
                own -= H @ coupling
            self._P.transposed(new, new)[:] = own
            # What earlier rows add is not negative: where it comes out so, digits were lost.
            sound = info == 0 and bool((np.diagonal(own) >= least).all())
            self.errors[r:e] = np.diagonal(own) if sound else np.inf
            inverse.append(L)
            transfer.append(H)
        return inverse, transfer

    def _backward(self, inverse: list[Array], transfer: list[Array]) -> None:
        """The gradient by the entries of K, on its band."""
        n = self.rounds
        first = max(0, n - self.reach)
        S = np.zeros((n - first, n - first), order="F")
        for (r, e), L, H in zip(reversed(self._blocks()), reversed(inverse), reversed(transfer), strict=True):
            r0 = max(0, r - self.reach)
            rows = S[r - first :]
            own = rows[:, r - first :]
            own = np.tril(own) + np.tril(own, -1).T + np.diag(self.weights[r:e])
            rows = np.concatenate([rows[:, : r - first], own], axis=1)
            both, after, new = slice(r0, e), slice(first, e), slice(r, e)
            np.matmul(self._P.transposed(both, after), rows.T @ (-2 * L), out=self._G.transposed(both, new))
            self.column_norms[r:e] = np.einsum("ij,ij->j", L, own @ L)
            if r == 0:
                break
            Y = -0.5 * (own @ H)
            Y[:, first - r0 :] += rows[:, : r - first]
            past = np.zeros((r - r0, r - r0), order="F")
            past[first - r0 :, first - r0 :] = S[: r - first, : r - first]
            S = dsyr2k(-1.0, H.T, Y.T, 1.0, past, lower=1, overwrite_c=1)
            first = r0
