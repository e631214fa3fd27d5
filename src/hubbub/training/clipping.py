"""Clipping of updates, flat: the whole update of a client, as one vector, is scaled to a norm of at most the clip norm.

The clip norm is one number for the whole run, or a function of the releases so far. The loop keeps the clip norm of the next
round and moves it with every release, so that a resumed run has the clip norms of an uninterrupted one.

Adaptive clipping moves the clip norm towards a quantile of the updates' norms. Each client's indicator b, whether its update's
norm was at most the clip norm, is one more coordinate of the same sum, s·(b − ½), and is hidden by the same row of noise: there
is no second release. With z the noise multiplier of the whole, z_Δ that of the updates and σ_b the standard
deviation of the noise on the count of indicators,

    z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2),    s = z_Δ·C / σ_b,    the norm of (update, s·(b − ½)) is at most C·z_Δ / z.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from hubbub._util.checks import number, plain_numbers, positive, scale

if TYPE_CHECKING:
    # A plan needs no tensors.
    import torch

    from hubbub.noise.lattice import Lattice


# Bounds of an adapted clip norm, with room for the norm of the update together with its indicator.
_LEAST, _MOST = 1e-10, 1e10
_LARGEST_SHARE = 100.0


@dataclass(frozen=True)
class AdaptiveClipping:
    """Adaptive clipping: the clip norm follows a quantile of the updates' norms.

    Args:
        initial_clip_norm: Of the first round, from 1e-10 to 1e10.
        target_quantile: The part of the updates that shall *not* be clipped, in [0, 1].
        clip_norm_learning_rate: Of the geometric step, above 0.
        clip_count_stddev: σ_b, of the noise on the count of unclipped updates; by default a twentieth of the expected cohort
            size, or the noise multiplier if that is larger.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> rule = AdaptiveClipping(initial_clip_norm=0.1, target_quantile=0.5)
        >>> split = rule.split(noise_multiplier=1.0, expected_cohort_size=100)
        >>> round(split.update_multiplier, 4)  # the updates have a little more noise, since the count is seen as well
        1.005

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1 and Theorem 1,
    https://arxiv.org/abs/1905.03871.
    """

    initial_clip_norm: float = 0.1
    target_quantile: float = 0.5
    clip_norm_learning_rate: float = 0.2
    clip_count_stddev: float | None = None

    def __post_init__(self) -> None:
        plain_numbers(self, clip_norm_learning_rate=positive, clip_count_stddev=scale)
        if not _LEAST <= scale("initial_clip_norm", self.initial_clip_norm) <= _MOST:
            raise ValueError(f"initial_clip_norm = {self.initial_clip_norm!r}: must be from {_LEAST:g} to {_MOST:g}")
        number("target_quantile", self.target_quantile, lambda x: 0 <= x <= 1, "be from 0 to 1")

    def split(self, noise_multiplier: float, expected_cohort_size: float) -> CountSplit:
        """The split of the noise between updates and count.

        Args:
            noise_multiplier: Of updates and count together, over the clip norm; from 1e-12 to 1e12.
            expected_cohort_size: In clients; a twentieth of it is the usual noise on the count.

        Raises:
            ValueError: Too little noise on the count: the updates would have no budget left.
        """
        z = scale("noise_multiplier", noise_multiplier)
        stddev = max(expected_cohort_size / 20, z) if self.clip_count_stddev is None else float(self.clip_count_stddev)
        room = 1 - (z / (2 * stddev)) ** 2
        if room < _LARGEST_SHARE**-2:
            raise ValueError(
                f"clip_count_stddev = {stddev!r}: twice that must be well above noise_multiplier = {z!r}, or the count of "
                f"clipped updates costs all that is to be spent; raise it to {z!r} or leave it out"
            )
        return CountSplit(z, z / math.sqrt(room), stddev)

    def following(self, clip_norm: float, fraction: float) -> float:
        """The next clip norm, after a noisy fraction of unclipped updates: a geometric step of bounded length.

        Args:
            clip_norm: Of the round that was released.
            fraction: Of the updates that were not clipped, with noise; beyond 0 and 1 it counts as these.
        """
        step = -self.clip_norm_learning_rate * (min(max(fraction, 0.0), 1.0) - self.target_quantile)
        return min(max(clip_norm * math.exp(min(max(step, -50.0), 50.0)), _LEAST), _MOST)


@dataclass(frozen=True)
class CountSplit:
    """One Gaussian of multiplier z, shared by updates and count.

    Args:
        noise_multiplier: z, of both together: the accountant's.
        update_multiplier: z_Δ, of the updates.
        count_stddev: σ_b, of the noise on the count of indicators.

    Example:
        >>> split = AdaptiveClipping().split(noise_multiplier=1.0, expected_cohort_size=100)
        >>> split.count_stddev, round(split.update_multiplier, 6)
        (5.0, 1.005038)
        >>> round(split.noise_multiplier * split.joint_norm(2.0) - split.update_multiplier * 2.0, 12)
        0.0
    """

    noise_multiplier: float
    update_multiplier: float
    count_stddev: float

    def count_scale(self, clip_norm: float) -> float:
        """s, by which an indicator enters the sum."""
        return self.update_multiplier * clip_norm / self.count_stddev

    def joint_norm(self, clip_norm: float) -> float:
        """The largest norm of an update with its indicator, to which noise and lattice are scaled."""
        return math.hypot(clip_norm, self.count_scale(clip_norm) / 2)

    def fraction(self, coordinate: float, clip_norm: float, expected_cohort_size: float) -> float:
        """The noisy fraction of unclipped updates, from the released coordinate; over a fixed number, never over replies."""
        return coordinate / self.count_scale(clip_norm) / expected_cohort_size + 0.5


Clipping = float | AdaptiveClipping
_Norm = TypeVar("_Norm", float, float | None)


@dataclass(frozen=True)
class ClipNorms:
    """The clip norm of each round: a number, or by a rule by which it moves; ``None`` for updates of any norm.

    The noise multiplier is that of a client's whole contribution, which adaptive clipping splits.

    Example:
        >>> norms = ClipNorms(AdaptiveClipping(initial_clip_norm=2.0), noise_multiplier=1.0, expected_cohort_size=100)
        >>> norms.first, norms.further, round(norms.bound(2.0), 4)
        (2.0, 1, 2.0101)
        >>> ClipNorms(0.5, 1.0, 100).bound(0.5)
        0.5
    """

    clipping: Clipping | None
    noise_multiplier: float | None
    expected_cohort_size: float

    @cached_property
    def split(self) -> CountSplit | None:
        """The split of the noise between updates and count; ``None`` for a fixed clip norm."""
        if not isinstance(self.clipping, AdaptiveClipping) or self.noise_multiplier is None:
            return None
        return self.clipping.split(self.noise_multiplier, self.expected_cohort_size)

    @property
    def first(self) -> float | None:
        """The clip norm of the first round."""
        return self.clipping.initial_clip_norm if isinstance(self.clipping, AdaptiveClipping) else self.clipping

    @property
    def further(self) -> int:
        """Coordinates of a sum in addition to the update's: 1 for the count of unclipped updates, or 0."""
        return 0 if self.split is None else 1

    def bound(self, clip_norm: _Norm) -> _Norm:
        """The largest norm of a client's whole contribution, to which noise and lattice are scaled."""
        return clip_norm if self.split is None or clip_norm is None else self.split.joint_norm(clip_norm)

    def following(self, clip_norm: _Norm, release: torch.Tensor) -> _Norm:
        """The clip norm of the next round, after a release, ``(dim + further,)``."""
        if self.split is None or clip_norm is None or not isinstance(self.clipping, AdaptiveClipping):
            return clip_norm
        fraction = self.split.fraction(float(release[-1]), clip_norm, self.expected_cohort_size)
        return self.clipping.following(clip_norm, fraction)

    def record(self) -> dict[str, Any]:
        """The settings in a promise, as strict JSON values, with the noise on the count resolved."""
        if self.split is None or not isinstance(self.clipping, AdaptiveClipping):
            return {"clip_norm": self.clipping}
        return {"adaptive_clipping": asdict(replace(self.clipping, clip_count_stddev=self.split.count_stddev))}


# Sums of many squares round; this keeps a scaled vector below the clip norm at any length.
_MARGIN = 1 - 2**-20


def clip(update: torch.Tensor, clip_norm: float) -> tuple[torch.Tensor, bool]:
    """The update in float64, scaled to an L2 norm of at most ``clip_norm``, and whether it had to be.

    An update with a number that is not finite counts as zero: whether a round is released must not depend on one client.

    Args:
        update: ``(dim,)``, any floating dtype.
        clip_norm: From 1e-12 to 1e12.

    Raises:
        ValueError: The clip norm is out of range.

    Example:
        >>> import torch
        >>> clip(torch.tensor([3.0, 4.0]), clip_norm=1.0)[0].norm().item() <= 1.0
        True

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1,
    https://arxiv.org/abs/1710.06963 (flat clipping).
    """
    bound = scale("clip_norm", clip_norm)
    # A plan of a run asks for clip norms, and loads no tensors.
    import torch

    vector = update.detach().to(torch.float64)
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    if not math.isfinite(largest):
        return vector.new_zeros(vector.shape), True
    if largest == 0:
        return vector, False
    # Scaled first, so that the squares of huge numbers do not overflow and those of tiny ones do not vanish.
    unit = vector / largest
    norm = float(unit.norm())
    if norm * largest <= bound * _MARGIN:
        return vector, False
    return unit * (bound * _MARGIN / norm), True


def bounded(
    update: torch.Tensor, clip_norm: float | None, lattice: Lattice | None, split: CountSplit | None = None
) -> tuple[torch.Tensor, bool]:
    """A client's contribution to the sum, ``(dim,)``, and whether it was clipped; with a ``split`` its indicator comes last."""
    if clip_norm is None:
        return update, False
    if split is None:
        return lattice.encode(update) if lattice else clip(update, clip_norm)
    joint, was_clipped = with_indicator(update, clip_norm, split.count_scale(clip_norm))
    return (lattice.encode(joint)[0] if lattice else joint), was_clipped


def with_indicator(
    update: torch.Tensor, clip_norm: float, count_scale: float, stated: int | None = None
) -> tuple[torch.Tensor, bool]:
    """A clipped update with its indicator, ``(dim + 1,)``, and whether it was clipped.

    A client that has clipped says so itself (``stated`` = 0); an update that was clipped here counts as clipped all the same.
    """
    import torch

    vector, was_clipped = clip(update, clip_norm)
    within = 0 if was_clipped else 1 if stated is None else min(max(stated, 0), 1)
    return torch.cat([vector, vector.new_tensor([count_scale * (within - 0.5)])]), was_clipped
