"""Sums that this process can read: on the lattice, as a release needs them, or in floating point, for experiments."""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from hubbub.errors import SumNotOpenedError
from hubbub.lattice import Lattice, require_one_shape

__all__ = ["LatticeSum", "NoSum", "PlainSum", "statistics"]


@dataclass(frozen=True)
class LatticeSum:
    """A sum of clipped updates in whole steps of a lattice, ``(dim,)`` int64: the same in whatever order it was formed.

    ``statistics`` are private.
    """

    total: torch.Tensor
    lattice: Lattice
    statistics: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.total.dtype != torch.int64 or self.total.ndim != 1:
            raise ValueError(f"total has shape {tuple(self.total.shape)} and {self.total.dtype}: must be one vector of int64")

    def digest(self, key: bytes) -> str:
        """An HMAC of the sum."""
        return _digest(key, self.total)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """The sum plus a row of noise, rounded to the lattice, ``(dim,)`` float64."""
        return self.lattice.release(self.total, row)


@dataclass(frozen=True)
class PlainSum:
    """A sum in floating point, ``(dim,)`` float64: for simulations, and for runs that promise nothing.

    ``statistics`` are private.
    """

    total: torch.Tensor
    statistics: Mapping[str, float]

    @property
    def lattice(self) -> None:
        """None: what is added to it can be told from its last bits."""
        return

    def digest(self, key: bytes) -> str:
        """An HMAC of the sum."""
        return _digest(key, self.total)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """The sum plus a row of noise, ``(dim,)`` float64."""
        if row is None:
            return self.total
        require_one_shape(self.total, row)
        return self.total + row.to(self.total.device)


@dataclass(frozen=True)
class NoSum:
    """In place of a sum that is not formed yet, or never was, since too few contributions came, say: its round is charged."""

    lattice: Lattice | None
    fault: SumNotOpenedError

    @property
    def statistics(self) -> Mapping[str, float]:
        """Nothing: no update was counted."""
        return {}

    def digest(self, key: bytes) -> str:
        """An HMAC of the fault."""
        return hmac.new(key, str(self.fault).encode(), hashlib.sha256).hexdigest()

    def open(self, row: torch.Tensor | None) -> NoReturn:
        """Refused.

        Raises:
            SumNotOpenedError: The fault.
        """
        raise self.fault


def _digest(key: bytes, total: torch.Tensor) -> str:
    return hmac.new(key, total.cpu().numpy().tobytes(), hashlib.sha256).hexdigest()


def statistics(cohort: int, clipped: int, losses: Sequence[float]) -> dict[str, float]:
    """What the operator is told of a round: private. Losses that are not finite are left out."""
    finite_losses = [loss for loss in losses if math.isfinite(loss)]
    return {
        "clipped_fraction": clipped / cohort if cohort else 0.0,
        # The same in whatever order clients were trained.
        "train_loss": math.fsum(finite_losses) / len(finite_losses) if finite_losses else math.nan,
    }
