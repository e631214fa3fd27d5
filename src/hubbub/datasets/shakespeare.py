"""Shakespeare by speaker: next-character prediction on the words of 303 speakers of his plays.

Each speaker is a user. The public test data are the words of held-out speakers: under a guarantee for users, no words of a
user in the training data may count as public.

Source: A. Karpathy, The Unreasonable Effectiveness of Recurrent Neural Networks, 2015, ``tinyshakespeare``. Speakers as users:
McMahan, Moore, Ramage, Hampson and Agüera y Arcas 2017, https://arxiv.org/abs/1602.05629.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch

from hubbub._util.checks import integer
from hubbub._util.files import cache_folder
from hubbub.datasets.dataset import IGNORED, Dataset
from hubbub.datasets.published import PublishedFile, named
from hubbub.errors import DataError

# Of the published text, and fixed: otherwise the shape of a model would reveal which characters users have.
ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PUBLISHED = PublishedFile(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_NAMES = ("shakespeare.txt", _PUBLISHED.name)
# One speaker in ten; fixed, so that all runs have the same test data.
_HELD_OUT, _SPLIT = 10, 0


def load(path: str | None = None, length: int = 80) -> Dataset:
    """Shakespeare's text as :func:`examples` of ``(length,)`` characters; ``users`` has the speaker of each.

    The test data are the words of one speaker in ten. Ten of the 303 speakers have no words.

    Args:
        path: The published text, or a folder with it as ``shakespeare.txt`` or ``input.txt``. Without one: the folder in the
            environment variable ``HUBBUB_DATA``, then the cache ``~/.cache/hubbub/shakespeare``, then a download into that
            cache.
        length: Characters in an example.

    Raises:
        DataError: The file is missing or another one, or the download fails.
    """
    integer("length", length, at_least=1)
    place, instead = named(path), f"give data.path or set HUBBUB_DATA to a folder with {_NAMES[0]}"
    if place is None:
        content = _PUBLISHED.fetched(cache_folder() / "shakespeare", instead)
    else:
        if place.is_dir():
            place = next((place / name for name in _NAMES if (place / name).is_file()), place / _NAMES[0])
        content = _PUBLISHED.read(place, f"{instead}, or leave both out to download it")
    said = {name: words for name, words in sorted(speakers(content.decode("ascii")).items()) if words}
    names = list(said)
    held_out = {names[i] for i in np.random.default_rng(_SPLIT).permutation(len(names))[: len(names) // _HELD_OUT]}
    train = [(name, examples(said[name], length)) for name in names if name not in held_out]
    test = [(name, examples(said[name], length)) for name in names if name in held_out]
    users = np.repeat([name for name, _ in train], [len(inputs) for _, (inputs, _) in train])
    return Dataset(*_joined(train), *_joined(test), users=users, declared_classes=len(ALPHABET))


def speakers(text: str) -> dict[str, str]:
    """The words of each speaker: all speeches, each after a line end; empty for a speaker without any."""
    said: dict[str, str] = {}
    for speech in re.split(r"\n{2,}", text.strip("\n")):
        name, _, words = speech.partition("\n")
        name = name.removesuffix(":").casefold()
        said[name] = said.get(name, "") + (f"\n{words}" if words else "")
    return said


def examples(words: str, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of a text, and the next character at each place: inputs and targets, ``(examples, length)``, int64.

    Each character but the first is a target once. The last piece is padded with character 0, and its targets with -100,
    which losses ignore.

    Args:
        words: At least two characters of :data:`ALPHABET`.
        length: Characters in a piece.

    Raises:
        DataError: Fewer than two characters, or one outside the alphabet.
    """
    unknown = sorted(set(words) - set(ALPHABET))
    if len(words) < 2 or unknown:
        raise DataError(f"a text of {len(words)} characters, of which {unknown} are unknown: needs two of the alphabet")
    numbers = torch.tensor([_NUMBERS[character] for character in words])
    pieces = -(-(len(words) - 1) // length)
    inputs = torch.zeros(pieces * length, dtype=torch.int64)
    targets = torch.full((pieces * length,), IGNORED)
    inputs[: len(words) - 1], targets[: len(words) - 1] = numbers[:-1], numbers[1:]
    return inputs.view(pieces, length), targets.view(pieces, length)


_NUMBERS = {character: number for number, character in enumerate(ALPHABET)}


def _joined(parts: Sequence[tuple[str, tuple[torch.Tensor, torch.Tensor]]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*(pair for _, pair in parts), strict=True)
    return torch.cat(inputs), torch.cat(targets)
