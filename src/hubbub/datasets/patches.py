"""Features of small patches: what the patches of an image have in common with patches of random images.

Every patch of 5 × 5 pixels is brought to mean 0 and variance 1, whitened, and compared with 384 whitened patches of random
images, by inner products. What is above a threshold, and what is below its negative, is averaged over a sixteenth of the image,
and square roots are taken. The features of an image and of its mirror image are added, so that a model cannot tell the two
apart: this is for photographs. Patches, whitening and decorrelation come from images that the library draws
(:mod:`hubbub.datasets.features`), so that the features cost no privacy.

Source: Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning",
https://proceedings.mlr.press/v15/coates11a.html; Coates and Ng 2011, "The Importance of Encoding Versus Training with Sparse
Coding and Vector Quantization", whose patches come from the data.
"""

import math
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.datasets.dataset import Dataset
from hubbub.datasets.features import random_images, require_images, with_features

# Patches that an image's are compared with, their side, and of how many they are drawn and the whitening is known.
_PATCHES, _SIDE, _DRAWN = 384, 5, 200_000
# Side of the grid of averages.
_GRID = 4
_THRESHOLD = 0.5
# Added to the variance of a patch of images of variance 1, so that noise in flat ones stays small; and to those of whitening.
_FLAT, _NOISE = 0.0025, 0.1
# The power of the covariance by which channels are decorrelated: whitening.
_POWER = -0.5
# Images of 32 × 32 at a time.
_BATCH = 50
_VERSION = 1


@cache
def _filters(channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened patches with their whitening, and with their mirror images, ``(2 · 384, channels, 5, 5)``; what is added."""
    draw = torch.Generator().manual_seed(0)
    # Variance 1, as data sets standardize images.
    images = 4 * random_images(channels, 32, 32)
    rows = F.unfold(images, _SIDE).movedim(1, 2).flatten(0, 1)
    rows = rows[torch.randint(len(rows), (_DRAWN,), generator=draw)].double()
    rows -= rows.mean(1, keepdim=True)
    rows /= (rows.var(1, keepdim=True, correction=0) + _FLAT).sqrt()
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T.cov(correction=0))
    whitening = (vectors * (values + _NOISE).rsqrt()) @ vectors.T
    white = (rows - mean) @ whitening
    lengths = white.norm(dim=1, keepdim=True)
    chosen = (white / lengths)[lengths[:, 0] > lengths.median()][:_PATCHES] @ whitening
    centered = (chosen - chosen.mean(1, keepdim=True)).reshape(-1, channels, _SIDE, _SIDE)
    added = -(chosen @ mean)
    return torch.cat([centered, centered.flip(3)]).float(), torch.cat([added, added]).float()


def _pooled(images: torch.Tensor) -> torch.Tensor:
    filters, added = _filters(images.shape[1])
    box = torch.full((1, *filters.shape[1:]), 1 / filters[0].numel())
    mean = F.conv2d(images, box)
    variance = (F.conv2d(images**2, box) - mean**2).clamp(min=0)
    likeness = F.conv2d(images, filters) * (variance + _FLAT).rsqrt() + added[:, None, None]
    averages = (F.adaptive_avg_pool2d(F.relu(side - _THRESHOLD), _GRID) for side in (likeness, -likeness))
    return torch.cat([side[:, :_PATCHES] + side[:, _PATCHES:].flip(3) for side in averages], 1).sqrt()


def patches(images: torch.Tensor) -> torch.Tensor:
    """Of images ``(examples, channels, height, width)`` the likeness of their patches to 384 patches of random images.

    Height and width are at least 8; what is returned is ``(examples, 768, 4, 4)`` float32, of each example mean 0 and variance
    1, and the same for its mirror image.

    Example:
        >>> patches(torch.rand(2, 1, 32, 32)).shape
        torch.Size([2, 768, 4, 4])
    """
    require_images(images)
    together = max(1, min(_BATCH, _BATCH * 32**2 // math.prod(images.shape[2:])))
    return F.group_norm(torch.cat([_pooled(part) for part in images.float().split(together)]), 1)


def with_patches(dataset: Dataset, folder: Path | None = None) -> Dataset:
    """A data set of images with the likeness of their patches to random ones, decorrelated, as inputs.

    They are kept in ``folder`` for the next run. Inputs that are no images are refused.

    Example:
        >>> images, targets = torch.rand(6, 1, 8, 8), torch.arange(6) % 2
        >>> with_patches(Dataset(images[:4], targets[:4], images[4:], targets[4:])).shape
        (768, 4, 4)
    """
    return with_features(dataset, patches, _POWER, f"{_VERSION} patches", folder)
