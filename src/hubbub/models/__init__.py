"""Models for the included data sets. Any other ``torch.nn.Module`` without buffers works, too.

Text models predict the next character at each place of a sequence: logits ``(examples, classes, length)``, as
``torch.nn.functional.cross_entropy`` takes them with targets ``(examples, length)``. Characters are integers below the number
of classes.
"""

import math

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hubbub.errors import ConfigError

__all__ = ["CharLstm", "CharTransformer", "CifarCnn", "Cnn", "Linear", "Mlp"]


class Cnn(nn.Sequential):
    """Two convolutions and two dense layers: 21,840 parameters for 28 × 28 grey images and 10 classes.

    Args:
        shape: Shape of one input, ``(channels, height, width)``; height and width at least 16.
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
        first = (nn.Conv2d(channels, 10, 5), nn.MaxPool2d(2), nn.ReLU())
        second = (nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU())
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(features, 50), nn.ReLU(), nn.Linear(50, classes))


class CifarCnn(nn.Sequential):
    """Six convolutions of 3 × 3 and two dense layers with tanh: 550,570 parameters for 32 × 32 color images and 10 classes.

    Bounded activations keep gradients small, so that clipping loses less.

    Args:
        shape: Shape of one input, ``(channels, height, width)``; height and width at least 8.
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


class Linear(nn.Sequential):
    """One dense layer, which begins at zero: logistic regression, for inputs that are features.

    Args:
        shape: Shape of one input.
        classes: Number of classes.

    Example:
        >>> sum(p.numel() for p in Linear((81, 7, 7), 10).parameters())
        39700
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Mlp(nn.Sequential):
    """Two dense layers.

    Args:
        shape: Shape of one input.
        classes: Number of classes.
        hidden: Width of the hidden layer.

    Example:
        >>> import torch
        >>> Mlp((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 64) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


class CharLstm(nn.Module):
    """An embedding of 8 numbers and two LSTM layers of 128: 211,657 parameters for 65 characters.

    Args:
        shape: Shape of one input, ``(length,)``.
        classes: Number of characters.
        hidden: Width of the LSTM layers; the network of the source has 256, and 815,945 parameters for 65 characters.

    Example:
        >>> sum(p.numel() for p in CharLstm((80,), 65).parameters())
        211657
        >>> CharLstm((80,), 65)(torch.zeros(2, 80, dtype=torch.int64)).shape
        torch.Size([2, 65, 80])

    Source: McMahan, Moore, Ramage, Hampson and Agüera y Arcas 2017, section 3, https://arxiv.org/abs/1602.05629.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 128) -> None:
        _require_sequences("char-lstm", shape)
        super().__init__()
        self.embedding = nn.Embedding(classes, 8)
        self.lstm = nn.LSTM(8, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits of the next characters, ``(examples, classes, length)``, from characters, ``(examples, length)``."""
        states, _ = self.lstm(self.embedding(characters))
        logits: torch.Tensor = self.head(states)
        return logits.transpose(1, 2)


class CharTransformer(nn.Module):
    """Two causal layers of width 128 with four heads, without dropout: 423,745 parameters for 65 characters in sequences of 80.

    Args:
        shape: Shape of one input, ``(length,)``; later inputs must not be longer.
        classes: Number of characters.

    Example:
        >>> sum(p.numel() for p in CharTransformer((80,), 65).parameters())
        423745

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; norms before the layers and GELU as in Radford et al. 2019,
    Language Models are Unsupervised Multitask Learners.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        _require_sequences("char-transformer", shape)
        super().__init__()
        width, heads = 128, 4
        self.embedding = nn.Embedding(classes, width)
        self.places = nn.Parameter(torch.empty(shape[0], width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        # As in the source: with unit variance the position would dominate the character.
        for table in (self.embedding.weight, self.places):
            nn.init.normal_(table, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits of the next characters, ``(examples, classes, length)``, from characters, ``(examples, length)``."""
        length = characters.shape[1]
        # Not stored: a stored mask would be a buffer.
        later = torch.ones(length, length, dtype=torch.bool, device=characters.device).triu(1)
        states = self.embedding(characters) + self.places[:length]
        # torch.func.vmap has no rule for the fused kernels.
        with sdpa_kernel(SDPBackend.MATH):
            for layer in self.layers:
                states = layer(states, src_mask=later)
        logits: torch.Tensor = self.head(self.norm(states))
        return logits.transpose(1, 2)


def _require_sequences(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise ConfigError(
            f"model.name = {name!r}: takes sequences of characters, these inputs are {shape}; use 'mlp', 'cnn' or 'cifar-cnn'"
        )
