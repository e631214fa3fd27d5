"""Features that need no data: fixed mathematics in place of learnt layers, so that a linear model is accurate under noise.

A transform gives each image some channels of numbers, normalized by the image alone; here they are centered and decorrelated
by the mean and covariance that they have over random images, which the library draws: ellipses of random gray or color that
overlap ("dead leaves"), whose edges have much the same statistics as those of photographs. So there are no data and no learnt
weights in it: the features are a function of the example alone and cost no privacy. A processor whose kernels compute a batch
of another size otherwise would leave a trace of other examples in the last digits of float32.

Source: Lee, Mumford and Huang 2001, "Occlusion Models for Natural Images", https://doi.org/10.1023/A:1011109015675 (dead
leaves); Baradad et al. 2021, https://arxiv.org/abs/2106.05963 (images of random processes in place of data); Tang, Panda,
Sehwag and Mittal 2023, https://arxiv.org/abs/2306.06076 (the same under differential privacy).
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from hubbub.datasets import published
from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError

# Images ``(examples, channels, height, width)`` to normalized features ``(examples, K, rows, columns)``.
Transform = Callable[[torch.Tensor], torch.Tensor]
# Images at a time.
_BATCH = 500
# So many images take minutes, and a bar shows how far they are.
_MANY = 10_000
# Random images, and the ellipses on each.
_LEAVES, _ELLIPSES = 2000, 30
_LEAST_SIDE = 8


def require_images(images: torch.Tensor, side_multiple: int = 1) -> None:
    """Refuse what is no image large enough for a transform, or has a side that is no multiple of a number."""
    sides = images.shape[2:]
    if images.ndim != 4 or not images.is_floating_point() or any(s % side_multiple or s < _LEAST_SIDE for s in sides):
        multiples = "" if side_multiple == 1 else f"multiples of {side_multiple}, "
        raise DataError(
            f"inputs: have the shape {tuple(images.shape)} and {images.dtype}; features are those of images (examples, "
            f"channels, height, width) in floating point, height and width {multiples}at least {_LEAST_SIDE}"
        )


@cache
def random_images(channels: int, height: int, width: int) -> torch.Tensor:
    """Random images, the same each time, ``(2000, channels, height, width)``, about 0 to 1: ellipses that overlap."""
    draw = np.random.default_rng(0)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    found = np.empty((_LEAVES, channels, height, width), np.float32)
    for image in found:
        image[:] = draw.uniform(0, 1, (channels, 1, 1))
        for _ in range(_ELLIPSES):
            # Areas of a law that is the same at all scales, from 1.5 pixels up.
            radius, flatness, turn = 1.5 / math.sqrt(draw.uniform(0.01, 1)), draw.uniform(0.3, 1), draw.uniform(0, math.pi)
            right, down = x - draw.uniform(-4, width + 4), y - draw.uniform(-4, height + 4)
            along, across = right * math.cos(turn) + down * math.sin(turn), down * math.cos(turn) - right * math.sin(turn)
            inside = np.clip(radius + 0.5 - np.sqrt(along**2 * flatness + across**2 / flatness), 0, 1)
            color = np.clip(draw.uniform(0, 1) + draw.normal(0, 0.15, (channels, 1, 1)), 0, 1)
            image += inside * (color - image)
    return torch.from_numpy(found)


@cache
def _decorrelation(
    transform: Transform, power: float, channels: int, height: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of images of this shape the mean of each channel of features, ``(K,)``, and a map of the channels, ``(K, K)``.

    The map is a power of the covariance over random images, scaled so that their features have mean square 1.
    """
    leaves = random_images(channels, height, width)
    rows = torch.cat([transform(part).movedim(1, 3).flatten(0, 2) for part in leaves.split(_BATCH)]).double()
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T.cov(correction=0))
    powers = (values + 1e-3 * values[-1]) ** power
    scale = (values * powers**2).mean().rsqrt()
    return mean.float(), (scale * (vectors * powers) @ vectors.T).float()


def _features(images: torch.Tensor, transform: Transform, power: float, kind: str, folder: Path | None) -> torch.Tensor:
    """Decorrelated features, from the cache if they are there."""
    images = images.detach().float().cpu()
    digest = hashlib.sha256(f"{kind} {tuple(images.shape)}".encode() + images.contiguous().numpy().tobytes()).hexdigest()
    file = None if folder is None else folder / f"{digest}.npz"
    if file is not None and file.is_file():
        # A damaged file, which its checksums tell, is computed anew.
        with suppress(*published.DAMAGE):
            with file.open("rb") as opened, np.load(opened) as archive:
                kept = archive["features"]
            if (len(kept), kept.ndim, kept.dtype) == (len(images), 4, np.float32):
                return torch.from_numpy(kept)
    mean, channels = _decorrelation(transform, power, *images.shape[1:])
    few = len(images) < _MANY
    parts = track(images.split(_BATCH), "Features of images", console=Console(stderr=True), transient=True, disable=few)
    found = torch.empty(0)
    for number, part in enumerate(parts):
        features = torch.einsum("nkij,lk->nlij", transform(part) - mean[:, None, None], channels)
        if not number:
            # Gigabytes, which would stand twice if parts were put together in the end.
            found = torch.empty(len(images), *features.shape[1:])
        found[number * _BATCH :][: len(part)] = features
    if file is not None:
        # Without a cache the next run computes them once more.
        with suppress(OSError), published.replacing(file) as place:
            np.savez(place, features=found.numpy())
    return found


def with_features(
    dataset: Dataset, transform: Transform, power: float, kind: str, folder: Path | None, side_multiple: int = 1
) -> Dataset:
    """A data set of images with their decorrelated features as inputs.

    Args:
        dataset: Of images, ``(examples, channels, height, width)``; other inputs are refused.
        transform: A function of a module, of images alone.
        power: Of the covariance of channels, by which they are decorrelated: 0 leaves them, -1/2 whitens.
        kind: Its name and version, for the cache.
        folder: Where features are kept for the next run, if anywhere.
        side_multiple: A divisor of height and width.
    """
    both = (dataset.train_inputs, dataset.test_inputs)
    # Before the first of them, which take minutes.
    for images in both:
        require_images(images, side_multiple)
    train, test = (_features(images, transform, power, kind, folder) for images in both)
    return replace(dataset, train_inputs=train, test_inputs=test)
