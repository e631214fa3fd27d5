"""Models for images: two small ones for digits, and a convolutional network for color images."""

import math

from torch import nn

from hubbub.errors import ConfigError

__all__ = ["CifarCnn", "Cnn", "Mlp"]


class Cnn(nn.Sequential):
    """Two convolutions and two dense layers: 21,840 parameters for 28 × 28 grey images and 10 classes.

    Args:
        shape: Of one input, ``(channels, height, width)``; height and width at least 16.
        classes: Number of classes.

    Example:
        >>> sum(p.numel() for p in Cnn((1, 28, 28), 10).parameters())
        21840
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        if len(shape) != 3 or min(shape[1:]) < 16:
            raise ConfigError(f"model.name = 'cnn': takes images of at least 16 × 16, these inputs are {shape}; use 'mlp'")
        channels, height, width = shape
        features = 20 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        super().__init__(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, 50),
            nn.ReLU(),
            nn.Linear(50, classes),
        )


class CifarCnn(nn.Sequential):
    """Six convolutions of 3 × 3 and two dense layers with tanh: 550,570 parameters for 32 × 32 color images and 10 classes.

    Bounded activations keep gradients small, and so lose less to the clip norm.

    Args:
        shape: Of one input, ``(channels, height, width)``; height and width at least 8.
        classes: Number of classes.

    Example:
        >>> sum(p.numel() for p in CifarCnn((3, 32, 32), 10).parameters())
        550570

    Source: Papernot, Thakurta, Song, Chien and Erlingsson 2021, table 2, https://arxiv.org/abs/2007.14191; Kairouz, McMahan,
    Song, Thakkar, Thakurta and Xu 2021, https://arxiv.org/abs/2103.00039.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        if len(shape) != 3 or min(shape[1:]) < 8:
            raise ConfigError(f"model.name = 'cifar-cnn': takes images of at least 8 × 8, these inputs are {shape}; use 'mlp'")
        channels, height, width = shape
        layers: list[nn.Module] = []
        for filters in (32, 64, 128):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
            layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
            channels = filters
        features = channels * (height // 8) * (width // 8)
        super().__init__(*layers, nn.Flatten(), nn.Linear(features, 128), nn.Tanh(), nn.Linear(128, classes))


class Mlp(nn.Sequential):
    """Two dense layers.

    Args:
        shape: Of one input.
        classes: Number of classes.
        hidden: Width of the hidden layer.

    Example:
        >>> import torch
        >>> Mlp((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 64) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))
