"""From pixels in bytes to numbers that a model learns from: images standardized channel by channel, JPEG files decoded."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["decoded", "standardized"]

_AT_A_TIME = 100


def standardized(pixels: npt.NDArray[np.uint8], means: Sequence[float], deviations: Sequence[float]) -> torch.Tensor:
    """Images ``(images, channels, height, width)`` in float32: (pixel / 255 − mean) / deviation, by channel.

    Args:
        pixels: Of the same shape.
        means: Of each channel, for pixels from 0 to 1.
        deviations: As above.
    """
    # NumPy asks for large pages, without which most of the time goes into asking for memory.
    images = torch.from_numpy(np.empty(pixels.shape, dtype=np.float32))
    by_channel = (len(means), 1, 1)
    mean, deviation = torch.tensor(means).view(by_channel), torch.tensor(deviations).view(by_channel)
    # A few at a time, in place, while they are in the processor's cache: of a large data set there is one copy.
    for start in range(0, len(pixels), _AT_A_TIME):
        some = images[start : start + _AT_A_TIME]
        some.copy_(torch.from_numpy(pixels[start : start + _AT_A_TIME].astype(np.float32)))
        some.div_(255).sub_(mean).div_(deviation)
    return images


def decoded(blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], side: int) -> npt.NDArray[np.uint8]:
    """Color images from JPEG files that stand one after another, ``(images, 3, side, side)``.

    Args:
        blob: All files, ``(bytes,)``.
        offsets: Where each begins, and where the last one ends, ``(images + 1,)``.
        side: Height and width that each image must have.

    Raises:
        ValueError: Offsets outside the blob, or a file that is no JPEG of that size, or is damaged.
    """
    from PIL import Image

    if offsets[0] < 0 or offsets[-1] > len(blob) or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must rise from 0 to at most {len(blob)}")
    images = np.empty((len(offsets) - 1, 3, side, side), dtype=np.uint8)
    for index, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        try:
            # No other format is tried, and the size is known before anything is decoded.
            with Image.open(BytesIO(blob[start:end].tobytes()), formats=["JPEG"]) as image:
                if image.size != (side, side) or image.mode != "RGB":
                    raise ValueError(f"it is {image.mode} of {image.size}, not RGB of {(side, side)}")
                images[index] = np.asarray(image).transpose(2, 0, 1)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"image {index}: {error}") from error
    return images
