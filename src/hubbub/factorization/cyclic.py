"""Sums of inverses of matrices that couple neighboring rounds, with weights that couple the rounds of one client.

Letters: b residues, k epochs, round r + e·b is epoch e of residue r; V one k × k block a residue, P tridiagonal over rounds, s
shifts and c weights of the poles. With the rounds of a residue side by side, P + s·V is block tridiagonal with one more pair of
blocks in its corners: the last residue of an epoch is coupled to the first of the next. Residue 0 is eliminated as a border of
the chain of the others; G are the pivots of the chain from its end, T its inverse.

All arrays are ``(residues, poles, epochs, epochs)``; O(b·k³) time a pole.
"""

from typing import NamedTuple

import numpy as np

from hubbub._checks import Array
from hubbub.factorization.poles import Poles

__all__ = ["inverse_blocks", "whole_inverse"]


class _Swept(NamedTuple):
    """Of the chain: −G_r⁻¹·E_{r−1} that leads from row to row, and T_rr; what the border sees of it; the border's inverse."""

    leads: Array
    own: Array
    border: Array
    first: Array


def inverse_blocks(gram: Array, V: Array, poles: Poles) -> Array:
    """The k × k block of each residue in Σ c_q·(P + s_q·V)⁻¹, ``(residues, epochs, epochs)``.

    Args:
        gram: The two bands of P, ``(2, rounds)``.
        V: ``(residues, epochs, epochs)``, at least two residues.
        poles: c and s.
    """
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
    # What the last residue sends back along the chain.
    product = np.broadcast_to(corner, shape[1:])
    for r in range(residues - 2, -1, -1):
        border[r] += own[r] @ product
        product = np.swapaxes(leads[r], 1, 2) @ product
    first = diagonal(0) - beside[0][:, None] * border[0] - corner.T @ border[-1]
    return _Swept(leads, own, border, np.linalg.inv(first))
