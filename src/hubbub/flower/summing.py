"""How the replies of one round become a sum on the lattice, where the server reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, RecordDict

from hubbub.flower.arrays import Change, Layout
from hubbub.flower.messages import CLIP_NORM, COUNT_SCALE, ENABLED, NOISE_STDDEV, Asked, norm_bit, single_arrays
from hubbub.flower.separation import require_kept
from hubbub.mechanism import Mechanism
from hubbub.noise.lattice import Lattice
from hubbub.noise.steps import share_stddev
from hubbub.training.aggregate import LatticeSum
from hubbub.training.clipping import CountSplit, clip

__all__ = ["Summing"]

# Sums of whole numbers below this are exact in float64.
_EXACT = 2**52


@dataclass(frozen=True)
class Summing:
    """How the replies of one round are summed.

    Args:
        layout: Of the model.
        clip_norm: Of an update.
        split: With adaptive clipping, how each client's indicator enters the sum as one more coordinate.
        mechanism: Says whether the clients bring noise along.
        lattice_bits: Of the lattice.
        separation: What devices are told that keep the separation; of one that does not say so nothing counts.
    """

    layout: Layout
    clip_norm: float
    split: CountSplit | None
    mechanism: Mechanism
    lattice_bits: int = 24
    separation: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def lattice(self) -> Lattice:
        """The lattice of the sum: of the clip norm of all that one client adds to it."""
        return Lattice(self.split.joint_norm(self.clip_norm) if self.split else self.clip_norm, self.lattice_bits)

    def config(self) -> dict[str, float | bool | str]:
        """The settings that clients get."""
        told: dict[str, float | bool | str] = {CLIP_NORM: float(self.clip_norm), **self.separation}
        lattice = self.lattice
        if shares := self.mechanism.shares:
            share = share_stddev(self.mechanism.noise_multiplier, lattice.clip_norm, shares.clients, lattice.bits)
            told[NOISE_STDDEV] = share * lattice.step
        if self.split:
            told[ENABLED] = True
            if shares:
                told[COUNT_SCALE] = self.split.count_scale(self.clip_norm)
        return told

    def of(self, asked: Asked, replies: Iterable[Message], arrays: ArrayRecord) -> tuple[LatticeSum, int, int]:
        """The sum of a round.

        Args:
            asked: Who was asked.
            replies: What came.
            arrays: The model that was sent.

        Returns:
            The sum, how many replies came, and how many of them entered it. What cannot be read, is not finite, or is not the
            model's counts as zero, with the reason among ``asked.faults``.
        """
        change = Change(self.layout.views(arrays))
        dim = self.layout.dim + (self.split is not None)
        # Whole numbers that float64 adds exactly, and those of clients that bring noise along, which may be larger.
        total, noised = (
            torch.zeros(dim, dtype=torch.float64),
            torch.zeros(dim if self.mechanism.shares else 0, dtype=torch.int64),
        )
        buffer, came, counted = self.lattice.buffer(total), 0, 0
        for client, content in asked.contents(replies):
            came += 1
            try:
                if self.separation:
                    require_kept(content, self.separation)
                if self.mechanism.shares:
                    noised += self._noised(content, len(asked.messages))
                else:
                    self._add(change.to(self.layout.views(single_arrays(content))), content, total, buffer)
                counted += 1
            except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not depend on it
                asked.refuse(client, error)
        steps = noised if self.mechanism.shares else total.to(torch.int64)
        return LatticeSum(steps, self.lattice, {}), came, counted

    def _add(self, change: Change, content: RecordDict, total: torch.Tensor, buffer: torch.Tensor) -> None:
        """Add a client's steps on the lattice to a sum, ``(dim,)``, its indicator last."""
        update = change if self.split is None else self._with_indicator(change, content)
        if self.lattice.add(update, total, buffer) is None:
            raise ValueError("its update is not finite")

    def _with_indicator(self, change: Change, content: RecordDict) -> torch.Tensor:
        """A clipped update, ``(dim + 1,)``, the client's indicator last."""
        bounded, was_clipped = clip(change.finite(), self.clip_norm)
        told = norm_bit(content)
        # A client that has clipped says so itself; of an update that is too long nobody needs to hear it.
        bit = 0 if was_clipped else 1 if told is None else min(max(told, 0), 1)
        scale = self.split.count_scale(self.clip_norm) if self.split else 0.0
        return torch.cat([bounded, torch.tensor([scale * (bit - 0.5)], dtype=torch.float64)])

    def _noised(self, content: RecordDict, cohort: int) -> torch.Tensor:
        """A client's noised steps on the lattice, which nobody can clip any more."""
        try:
            steps = self.layout.whole(single_arrays(content))
        except ValueError as error:
            raise ValueError(f"sent no noised numbers; its app needs mods=[noising_mod, clipping_mod] ({error})") from error
        if self.split is not None:
            bit = norm_bit(content)
            if bit is None:
                raise ValueError("its indicator is missing")
            steps = torch.cat([steps, torch.tensor([bit], dtype=torch.int64)])
        # Not by abs(), which leaves the least int64 negative.
        if max(int(steps.max()), -int(steps.min())) > _EXACT // cohort:
            raise ValueError("its numbers are too large to be summed exactly")
        return steps
