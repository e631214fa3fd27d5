"""Data sets of torchvision's and Hugging Face's kind as ours. The fakes give what items of the two libraries are."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hubbub.datasets import by_user, from_examples


class Pairs:
    """As torchvision's: pairs of an image, or what a transform makes of it, and an int; no columns, no end to iteration."""

    def __init__(self, pixels: np.ndarray, targets: list[int], transform: Callable[[Image.Image], Any] | None = None) -> None:
        self._pixels, self._targets, self._transform = pixels, targets, transform
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked.append(index)
        image = Image.fromarray(self._pixels[index % len(self)])
        return (image if self._transform is None else self._transform(image)), self._targets[index % len(self)]


class Split:
    """As a split of Hugging Face's ``datasets``: rows by number, columns by name, iteration over rows."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: column[key] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))


GREY = np.random.default_rng(0).integers(0, 256, (5, 4, 6), dtype=np.uint8)
COLOR = np.random.default_rng(1).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
LABELS = [2, 0, 1, 1, 2]


def to_tensor(image: Image.Image) -> torch.Tensor:
    """What torchvision's ToTensor does, pixel by pixel."""
    width, height = image.size
    image = image.convert("RGB")
    rows = [[[image.getpixel((x, y))[c] / 255 for x in range(width)] for y in range(height)] for c in range(3)]
    return torch.tensor(rows)


def test_images_of_pairs_become_floats_with_channels_first() -> None:
    dataset = from_examples(Pairs(COLOR, LABELS), Pairs(COLOR[:3], LABELS[:3]))
    expected = torch.stack([to_tensor(Image.fromarray(pixels)) for pixels in COLOR])
    torch.testing.assert_close(dataset.train_inputs, expected)
    torch.testing.assert_close(dataset.test_inputs, expected[:3])
    assert (dataset.train_targets.tolist(), dataset.train_targets.dtype, dataset.classes) == (LABELS, torch.int64, 3)
    grey = from_examples(Pairs(GREY, LABELS), Pairs(GREY, LABELS)).train_inputs
    np.testing.assert_allclose(grey.numpy(), GREY[:, np.newaxis] / 255, atol=1e-7)
    black_and_white = from_examples(Pairs(GREY > 99, LABELS), Pairs(GREY > 99, LABELS)).train_inputs
    assert torch.equal(black_and_white, torch.from_numpy(GREY > 99).float().unsqueeze(1))


def test_columns_become_inputs_targets_and_users() -> None:
    images = [Image.fromarray(pixels) for pixels in COLOR]
    train = Split(img=images, fine=LABELS, writer=["b", "a", "b", "c", "a"])
    test = Split(img=images[:3], fine=LABELS[:3], writer=["z"] * 3)
    dataset = from_examples(train, test, inputs="img", targets="fine", users="writer")
    assert dataset.shape == (3, 4, 6)
    assert dataset.users.tolist() == ["b", "a", "b", "c", "a"]
    assert [part.tolist() for part in by_user(dataset.users)] == [[1, 4], [0, 2], [3]]
    numbered = Split(image=images, label=LABELS, id=[torch.tensor(7), 3, np.int64(7), 3, 3])
    assert from_examples(numbered, numbered, users="id").users.tolist() == [7, 3, 7, 3, 3]


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        ([[0.5, 1], [2.0, 3]], torch.float32, [[0.5, 1.0], [2.0, 3.0]]),
        ([[1, 2], [3, 4]], torch.int64, [[1, 2], [3, 4]]),
        (list(np.array([[0.5], [1.5]], np.float64)), torch.float32, [[0.5], [1.5]]),
        (list(np.array([[1], [2]], np.uint16)), torch.int64, [[1], [2]]),
        (list(np.array([[0], [255]], np.uint8)), torch.float32, [[0.0], [1.0]]),
        (list(torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)), torch.int64, [[1, 2], [3, 4]]),
        (list(torch.tensor([[0.5], [1.5]], dtype=torch.float16)), torch.float32, [[0.5], [1.5]]),
        ([0.5, 1.5], torch.float32, [0.5, 1.5]),
    ],
    ids=str,
)
def test_numbers_keep_their_shape_and_bytes_are_pixels(rows: list[Any], dtype: torch.dtype, expected: list[Any]) -> None:
    split = Split(image=rows, label=[0, 1])
    inputs = from_examples(split, split).train_inputs
    assert (inputs.dtype, inputs.tolist()) == (dtype, expected)


def test_a_transform_makes_numbers_of_text_and_targets_may_be_sequences() -> None:
    split = Split(text=["abca", "caab"], next=[[1, 2, 0, -100], np.array([0, 0, 1, -100])])
    numbers = from_examples(split, split, inputs="text", targets="next", transform=lambda text: ["abc".index(c) for c in text])
    assert numbers.train_inputs.tolist() == [[0, 1, 2, 0], [2, 0, 0, 1]]
    assert numbers.train_targets.tolist() == [[1, 2, 0, -100], [0, 0, 1, -100]]
    assert (numbers.shape, numbers.classes) == ((4,), 3)
    assert from_examples(split, split, inputs="text", targets="next", transform=lambda text: [0] * 4, classes=9).classes == 9


def images(*sizes: tuple[int, ...]) -> list[Image.Image]:
    return [Image.fromarray(np.zeros(size, np.uint8)) for size in sizes]
