"""How much one client may move the sum: its whole update, as one vector, is scaled to a norm of at most the clip norm."""

import math

import torch

from hubbub._checks import scale
from hubbub.lattice import Lattice
from hubbub.training.clip_norms import CountSplit

__all__ = ["MARGIN", "bounded", "clip"]

# Sums of many squares round; this keeps a scaled vector below the clip norm at any length.
MARGIN = 1 - 2**-20


def clip(update: torch.Tensor, clip_norm: float) -> tuple[torch.Tensor, bool]:
    """The update in float64, scaled to an L2 norm of at most ``clip_norm``, and whether it had to be.

    An update with a number that is not finite counts as zero: whether a round is released must not hang on one client.

    Args:
        update: ``(dim,)``, any floating dtype.
        clip_norm: From 1e-12 to 1e12.

    Raises:
        ValueError: The clip norm is out of range.

    Example:
        >>> clip(torch.tensor([3.0, 4.0]), clip_norm=1.0)[0].norm().item() <= 1.0
        True

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1,
    https://arxiv.org/abs/1710.06963 (flat clipping).
    """
    bound = scale("clip_norm", clip_norm)
    vector = update.detach().to(torch.float64)
    largest = float(vector.abs().max()) if vector.numel() else 0.0
    if not math.isfinite(largest):
        return torch.zeros_like(vector), True
    if largest == 0:
        return vector, False
    # Scaled first, so that the squares of huge numbers do not overflow and those of tiny ones do not vanish.
    unit = vector / largest
    norm = float(unit.norm())
    if norm * largest <= bound * MARGIN:
        return vector, False
    return unit * (bound * MARGIN / norm), True


def bounded(
    update: torch.Tensor, clip_norm: float | None, lattice: Lattice | None, split: CountSplit | None = None
) -> tuple[torch.Tensor, bool]:
    """A client's contribution to the sum, ``(dim,)``, and whether it was clipped; with a ``split`` its indicator comes last."""
    if clip_norm is None:
        return update, False
    if split is None:
        return lattice.encode(update) if lattice else clip(update, clip_norm)
    vector, was_clipped = clip(update, clip_norm)
    indicator = vector.new_tensor([split.count_scale(clip_norm) * (-0.5 if was_clipped else 0.5)])
    joint = torch.cat([vector, indicator])
    return (lattice.encode(joint)[0] if lattice else joint), was_clipped
