"""Scattering features: fixed mathematics in place of learnt layers, so that a linear model on them is accurate under noise.

An image is convolved with wavelets of several scales and angles; moduli of the results, and of their own wavelet transforms,
are averaged and subsampled. Channels are normalized in groups by each example's own mean and variance, then decorrelated. The
covariance of the channels is that of random images, ellipses of random gray or color that overlap ("dead leaves"), whose
wavelets have much the same statistics as those of photographs. So there are no data and no learnt weights in it: the features
are a function of the example alone and cost no privacy.

*Mirrored* features are those of an image plus those of its mirror image, of which the left half says all: a model cannot tell
the two apart, and has half the parameters. This is for photographs; a mirrored digit is another sign.

Source: Oyallon and Mallat 2015, https://arxiv.org/abs/1412.8659 (the transform); Andreux et al. 2020,
https://arxiv.org/abs/1812.11214 (kymatio, whose filters and boundaries these are); Tramèr and Boneh 2021,
https://arxiv.org/abs/2011.11660 (under differential privacy); Lee, Mumford and Huang 2001, "Occlusion Models for Natural
Images", https://doi.org/10.1023/A:1011109015675 (dead leaves); Baradad et al. 2021, https://arxiv.org/abs/2106.05963 (images of
random processes in place of data).
"""

import hashlib
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch.fft import fft2, ifft2
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util.checks import Array
from hubbub.datasets import published
from hubbub.datasets.dataset import Dataset
from hubbub.errors import DataError

__all__ = ["scattering", "with_scattering"]

# Of J scales and L angles there are 1 + J·L + L²·J·(J − 1)/2 channels for one of the image.
_SCALES, _ANGLES = 2, 8
# Groups of channels that are normalized together, for each channel of the image.
_GROUPS = 27
# Images at a time.
_BATCH = 500
# So many images take minutes, and a bar shows how far they are.
_MANY = 10_000
# Random images, and the ellipses on each.
_LEAVES, _ELLIPSES = 2000, 30
# The power of the covariance by which channels are decorrelated: halfway to whitening.
_POWER = -0.25
_VERSION = 3


def _gabor(size: tuple[int, int], sigma: float, theta: float, xi: float, slant: float) -> Array:
    """A plane wave of frequency ``xi`` under a Gaussian of width ``sigma``, periodic, ``size``."""
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    curve = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    found = np.zeros(size, complex)
    for down in range(-2, 3):
        for right in range(-2, 3):
            x, y = np.mgrid[down * size[0] : (down + 1) * size[0], right * size[1] : (right + 1) * size[1]]
            squares = curve[0, 0] * x**2 + (curve[0, 1] + curve[1, 0]) * x * y + curve[1, 1] * y**2
            found += np.exp(-squares + 1j * xi * (x * math.cos(theta) + y * math.sin(theta)))
    return found / (2 * math.pi * sigma**2 / slant)


def _morlet(size: tuple[int, int], scale: int, angle: int) -> Array:
    """A wavelet without a mean, in frequency, ``size``."""
    sigma, theta = 0.8 * 2**scale, (_ANGLES - _ANGLES // 2 - 1 - angle) * math.pi / _ANGLES
    wave, envelope = (_gabor(size, sigma, theta, xi, 4 / _ANGLES) for xi in (0.75 * math.pi / 2**scale, 0.0))
    found: Array = np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return found


def _periodized(filter_: Array, resolution: int) -> torch.Tensor:
    """A filter in frequency for an image that was subsampled by 2^``resolution``."""
    kept, step = filter_.copy(), 2**resolution
    for axis, length in enumerate(filter_.shape):
        start = int(length * 2 ** (-resolution - 1))
        gone = slice(start, start + int(length * (1 - 1 / step)))
        kept[(gone, slice(None)) if axis == 0 else (slice(None), gone)] = 0
    rows, columns = (length // step for length in filter_.shape)
    return torch.from_numpy(kept.reshape(step, rows, step, columns).sum(axis=(0, 2))).float()


@cache
def _filters(size: tuple[int, int]) -> tuple[list[torch.Tensor], list[tuple[int, list[torch.Tensor]]]]:
    """The averaging filter at each resolution; of each wavelet its scale, and the same."""
    average = np.fft.fft2(_gabor(size, 0.8 * 2 ** (_SCALES - 1), 0.0, 0.0, 1.0)).real
    wavelets = [(scale, _morlet(size, scale, angle)) for scale in range(_SCALES) for angle in range(_ANGLES)]
    levels = range(_SCALES)
    return (
        [_periodized(average, level) for level in levels],
        [(scale, [_periodized(wavelet, level) for level in levels]) for scale, wavelet in wavelets],
    )


def _subsampled(x: torch.Tensor, step: int) -> torch.Tensor:
    """Every ``step``-th number of an image, in frequency."""
    rows, columns = (length // step for length in x.shape[-2:])
    return x.reshape(*x.shape[:-2], step, rows, step, columns).mean(dim=(-4, -2))


def _require_images(images: torch.Tensor) -> None:
    step, sides = 2**_SCALES, images.shape[2:]
    if images.ndim != 4 or not images.is_floating_point() or any(side % step or side < 2 * step for side in sides):
        raise DataError(
            f"inputs: have the shape {tuple(images.shape)} and {images.dtype}; scattering takes images (examples, channels, "
            f"height, width) in floating point, height and width multiples of {step}, at least {2 * step}"
        )


def scattering(images: torch.Tensor) -> torch.Tensor:
    """The scattering transform of second order with 2 scales and 8 angles of images ``(examples, channels, height, width)``.

    Height and width are multiples of 4 and at least 8; what is returned is ``(examples, 81 · channels, height / 4, width / 4)``
    float32.

    Example:
        >>> scattering(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 81, 7, 7])
    """
    _require_images(images)
    step, sides = 2**_SCALES, images.shape[2:]
    size = tuple(side + 2 * step for side in sides)
    averages, wavelets = _filters((size[0], size[1]))

    def averaged(x: torch.Tensor, level: int) -> torch.Tensor:
        """The average of an image in frequency that was subsampled by 2^``level``, without its border."""
        found: torch.Tensor = ifft2(_subsampled(x * averages[level], 2 ** (_SCALES - level))).real[..., 1:-1, 1:-1]
        return found

    def moduli(x: torch.Tensor, level: int, scale: int, wavelet: torch.Tensor) -> torch.Tensor:
        """The modulus of a wavelet transform, subsampled by 2^``scale``, in frequency."""
        found: torch.Tensor = fft2(ifft2(_subsampled(x * wavelet, 2 ** (scale - level))).abs())
        return found

    x = fft2(F.pad(images.float(), (step,) * 4, mode="reflect"))
    zeroth, first, second = [averaged(x, 0)], list[torch.Tensor](), list[torch.Tensor]()
    for scale, of_levels in wavelets:
        once = moduli(x, 0, scale, of_levels[0])
        first.append(averaged(once, scale))
        for further, of_further in wavelets:
            if further > scale:
                second.append(averaged(moduli(once, scale, further, of_further[scale]), further))
    return torch.stack(zeroth + first + second, dim=2).flatten(1, 2)


def _normalized(images: torch.Tensor, mirrored: bool) -> torch.Tensor:
    """Features with mean 0 and variance at most 1 in each group of three channels, by each example's own statistics."""
    features = F.group_norm(scattering(images), images.shape[1] * _GROUPS)
    if not mirrored:
        return features
    return (features + _normalized(images.flip(3), mirrored=False))[..., : -(-features.shape[3] // 2)]


def _dead_leaves(channels: int, height: int, width: int) -> torch.Tensor:
    """Random images, the same each time, ``(_LEAVES, channels, height, width)``: ellipses that overlap."""
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
def _decorrelation(channels: int, height: int, width: int, mirrored: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Of images of this shape the mean of each channel of features, ``(K,)``, and a map of the channels, ``(K, K)``.

    The map is a power of the covariance over random images, scaled so that their features have mean square 1.
    """
    leaves = _dead_leaves(channels, height, width)
    rows = torch.cat([_normalized(part, mirrored).movedim(1, 3).flatten(0, 2) for part in leaves.split(_BATCH)]).double()
    mean = rows.mean(0)
    values, vectors = torch.linalg.eigh((rows - mean).T.cov(correction=0))
    powers = (values + 1e-3 * values[-1]) ** _POWER
    scale = (values * powers**2).mean().rsqrt()
    return mean.float(), (scale * (vectors * powers) @ vectors.T).float()


def _features(images: torch.Tensor, folder: Path | None, mirrored: bool) -> torch.Tensor:
    """Normalized and decorrelated features, from the cache if they are there."""
    kind = f"{_VERSION} {'mirrored ' if mirrored else ''}{tuple(images.shape)}"
    digest = hashlib.sha256(kind.encode() + images.contiguous().numpy().tobytes()).hexdigest()
    file = None if folder is None else folder / f"{digest}.npy"
    if file is not None and file.is_file():
        return torch.from_numpy(np.load(file))
    _require_images(images)
    mean, channels = _decorrelation(*images.shape[1:], mirrored)
    few = len(images) < _MANY
    parts = track(images.split(_BATCH), "Scattering features", console=Console(stderr=True), transient=True, disable=few)
    centered = (_normalized(part, mirrored) - mean[:, None, None] for part in parts)
    found = torch.cat([torch.einsum("nkij,lk->nlij", features, channels) for features in centered])
    if file is not None:
        with published.replacing(file) as place:
            np.save(place, found.numpy())
    return found


def with_scattering(dataset: Dataset, folder: Path | None = None, *, mirrored: bool = False) -> Dataset:
    """A data set of images with their normalized, decorrelated scattering features as inputs.

    They are kept in ``folder`` for the next run. With ``mirrored`` an image and its mirror image get the same features, half as
    many: for photographs. Inputs that are no images of a size that can be transformed are refused.

    Example:
        >>> images, targets = torch.rand(6, 1, 28, 28), torch.arange(6) % 2
        >>> with_scattering(Dataset(images[:4], targets[:4], images[4:], targets[4:])).shape
        (81, 7, 7)
    """
    train, test = (_features(images, folder, mirrored) for images in (dataset.train_inputs, dataset.test_inputs))
    return replace(dataset, train_inputs=train, test_inputs=test)
