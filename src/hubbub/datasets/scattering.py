"""Scattering features: fixed mathematics in place of learnt layers, so that a linear model on them is accurate under noise.

An image is convolved with wavelets of several scales and angles; moduli of the results, and of their own wavelet transforms,
are averaged and subsampled. Channels are normalized in groups by each example's own mean and variance.

*Mirrored* features are those of an image plus those of its mirror image, of which the left half says all: a model cannot tell
the two apart, and has half the parameters. This is for photographs; a mirrored digit is another sign.

Source: Oyallon and Mallat 2015, https://arxiv.org/abs/1412.8659 (the transform); Andreux et al. 2020,
https://arxiv.org/abs/1812.11214 (kymatio, whose filters and boundaries these are); Tramèr and Boneh 2021,
https://arxiv.org/abs/2011.11660 (under differential privacy).
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.fft import fft2, ifft2
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub._util.checks import Array
from hubbub.datasets.dataset import Dataset
from hubbub.datasets.features import require_images, with_features

# Of J scales and L angles there are 1 + J·L + L²·J·(J − 1)/2 channels for one of the image.
_SCALES, _ANGLES = 2, 8
# Groups of channels that are normalized together, for each channel of the image.
_GROUPS = 27
# The power of the covariance by which channels are decorrelated: halfway to whitening.
_POWER = -0.25
# Of these features, in the name under which a cache keeps them.
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


def scattering(images: torch.Tensor) -> torch.Tensor:
    """The scattering transform of second order with 2 scales and 8 angles of images ``(examples, channels, height, width)``.

    Height and width are multiples of 4 and at least 8; what is returned is ``(examples, 81 · channels, height / 4, width / 4)``
    float32.

    Example:
        >>> scattering(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 81, 7, 7])
    """
    step = 2**_SCALES
    require_images(images, step)
    size = tuple(side + 2 * step for side in images.shape[2:])
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


def _normalized(images: torch.Tensor) -> torch.Tensor:
    """Features with mean 0 and variance at most 1 in each group of three channels, by each example's own statistics."""
    return F.group_norm(scattering(images), images.shape[1] * _GROUPS)


def _mirrored(images: torch.Tensor) -> torch.Tensor:
    """Those of the image and of its mirror image."""
    both = _normalized(images) + _normalized(images.flip(3))
    return both[..., : -(-both.shape[3] // 2)]


def with_scattering(dataset: Dataset, folder: Path | None = None, *, mirrored: bool = False) -> Dataset:
    """A data set of images with their normalized, decorrelated scattering features as inputs.

    They are kept in ``folder`` for the next run. With ``mirrored`` an image and its mirror image get the same features, half as
    many: for photographs. Inputs that are no images of a size that can be transformed are refused.

    Example:
        >>> images, targets = torch.rand(6, 1, 8, 8), torch.arange(6) % 2
        >>> with_scattering(Dataset(images[:4], targets[:4], images[4:], targets[4:])).shape
        (81, 2, 2)
    """
    transform, kind = (_mirrored, f"{_VERSION} mirrored") if mirrored else (_normalized, f"{_VERSION}")
    return with_features(dataset, transform, _POWER, kind, folder, side_multiple=2**_SCALES)
