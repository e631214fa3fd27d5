"""Data sets: their partition among clients, what one may be, and those of torchvision's and Hugging Face's kind."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hubbub.datasets import Dataset, by_user, dealt, digits, dirichlet, from_examples, iid, mnist
from hubbub.errors import ConfigError, DataError
from hubbub.experiment.build import build
from hubbub.experiment.config import resolve

TARGETS = torch.arange(600) % 10


@pytest.mark.parametrize("parts", [iid(600, 7, seed=0), dirichlet(TARGETS, 7, alpha=0.3, seed=0)], ids=["iid", "dirichlet"])
def test_every_example_goes_to_exactly_one_client_and_shares_are_equal(parts: list[np.ndarray]) -> None:
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert {len(part) for part in parts} == {85, 86}


def test_a_deal_is_a_function_of_its_seed() -> None:
    for deal in (lambda seed: iid(600, 7, seed), lambda seed: dirichlet(TARGETS, 7, 0.3, seed)):
        first, again, other = (np.concatenate(deal(seed)) for seed in (1, 1, 2))
        assert (first == again).all()
        assert (first != other).any()


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "user"])
def test_clients_are_views_of_one_copy_of_the_data_and_have_what_they_were_dealt(partition: str) -> None:
    whole = digits.load()
    users = np.random.default_rng(1).integers(0, 30, len(whole.train_inputs))
    dataset = Dataset(whole.train_inputs, whole.train_targets, whole.test_inputs, whole.test_targets, users)
    deals = {"iid": iid(1437, 30, 0), "dirichlet": dirichlet(whole.train_targets, 30, 0.5, 0), "user": by_user(users)}
    parts = deals[partition]
    ordered, clients = dealt(dataset, parts)
    assert len(clients) == 30
    for part, (inputs, targets) in zip(parts, clients, strict=True):
        assert torch.equal(inputs, whole.train_inputs[part])
        assert torch.equal(targets, whole.train_targets[part])
        assert inputs.untyped_storage().data_ptr() == ordered.train_inputs.untyped_storage().data_ptr()
        assert targets.untyped_storage().data_ptr() == ordered.train_targets.untyped_storage().data_ptr()
    assert np.array_equal(ordered.users, users[np.concatenate(parts)])
    # Once they stand client by client, nothing is copied.
    with pytest.raises(DataError, match="together they must hold each of 0 to 1436 once"):
        dealt(dataset, [np.arange(1436), np.array([0])])
    assert dealt(ordered, by_user(np.repeat(np.arange(30), [len(part) for part in parts])))[0] is ordered


def test_mnist_is_the_published_data_bit_for_bit(data_folder: Path) -> None:
    dataset = mnist.load(str(data_folder))
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
    assert (dataset.classes, len(dataset.test_targets)) == (10, 10_000)
    pixels = ((dataset.train_inputs * 0.3081 + 0.1307) * 255).round().to(torch.uint8)
    header = np.array([0x803, 60_000, 28, 28], dtype=">i4").tobytes()
    # MD5 of the unpacked train-images-idx3-ubyte.
    found = hashlib.md5(header + pixels.numpy().tobytes(), usedforsecurity=False).hexdigest()
    assert found == "6bbc9ace898e44ae57da46a324031adb"


def test_digits_have_no_example_in_both_parts_and_holding_out_splits_the_training_data_alone() -> None:
    dataset = digits.load()
    assert (len(dataset.train_inputs), len(dataset.test_inputs), dataset.shape) == (1437, 360, (1, 8, 8))
    train = {row.numpy().tobytes() for row in dataset.train_inputs}
    assert not any(row.numpy().tobytes() in train for row in dataset.test_inputs)
    held = dataset.without_test(validation=0.1, seed=0)
    assert (len(held.train_inputs), len(held.test_inputs)) == (1293, 144)
    assert dataset.without_test(validation=0.001, seed=0).classes == 10
    assert all(row.numpy().tobytes() in train for row in held.test_inputs)


def fitting(**changes: object) -> Dataset:
    x, y = torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)
    good = {"train_inputs": x, "train_targets": y, "test_inputs": x[:1], "test_targets": y[:1]}
    return Dataset(**{**good, **changes})


def sequences(**changes: object) -> Dataset:
    train = {"train_inputs": torch.tensor([[1, 2, 3], [2, 0, 0]]), "train_targets": torch.tensor([[2, 3, 1], [1, -100, -100]])}
    test = {"test_inputs": torch.tensor([[3, 3, 1]]), "test_targets": torch.tensor([[3, -100, 2]])}
    return Dataset(**{**train, **test, **changes})


def test_sequences_have_the_classes_of_the_targets_that_count() -> None:
    assert (fitting().classes, sequences().classes, sequences(declared_classes=9).classes) == (1, 4, 9)
    assert sequences().shape == (3,)
    held = sequences(users=np.array([1, 2])).without_test(0.5, seed=0)
    assert (len(held.train_inputs), len(held.test_targets), held.classes) == (1, 1, 4)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (fitting, {"train_inputs": torch.tensor([[0.0], [float("nan")], [1.0]])}, "train_inputs: holds a number that is not"),
        (fitting, {"train_inputs": torch.zeros(3, 0)}, "train_inputs: have the shape (3, 0), which has no numbers"),
        (fitting, {"train_inputs": torch.zeros(3, 2)}, "train_inputs: have the shape (2,) each, test_inputs (1,)"),
        (fitting, {"users": np.zeros((3, 2))}, "users: has the shape (3, 2)"),
        (fitting, {"users": [1, 2, 3]}, "users: is [1, 2, 3]; it must be an array of shape (3,)"),
        (fitting, {"users": np.array([1, np.nan, np.nan])}, "users: are float64; each must be an integer or a name"),
        (fitting, {"users": np.array(["a", None, "b"])}, "users: are object; each must be an integer or a name"),
        (fitting, {"train_inputs": torch.zeros(3, 1).to_sparse()}, "dense and in memory"),
        (fitting, {"test_targets": torch.zeros(1, dtype=torch.int64, device="meta")}, "dense and in memory"),
        (fitting, {"train_targets": torch.tensor([0, 0, 7])}, "train_targets: run from 0 to 7, but the public test data know"),
        (fitting, {"test_targets": torch.tensor([2]), "declared_classes": 2}, "test_targets: run from 2 to 2, but declared"),
        (sequences, {"train_targets": torch.tensor([[2, -1, 1], [1, -100, -100]])}, "run from -1 to 2"),
        (sequences, {"train_targets": torch.tensor([[2, 3, 1], [-100] * 3])}, "train_targets[1]: is -100 everywhere"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_data_that_do_not_fit_together_are_refused(make: Callable[..., Dataset], changes: dict, message: str) -> None:
    make()
    with pytest.raises(DataError, match=re.escape(message)):
        make(**changes)
    with pytest.raises(TypeError, match="declared_classes"):
        make(declared_classes=2.5)


# Data sets of other libraries, by fakes that give what items of these are


class Pairs:
    """As torchvision's: pairs of an image and an int; no columns, no end to iteration."""

    def __init__(self, pixels: np.ndarray, targets: list[int]) -> None:
        self._pixels, self._targets = pixels, targets

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self._pixels[index % len(self)]), self._targets[index % len(self)]


class Split:
    """As a split of Hugging Face's ``datasets``: rows by number, columns by name."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        return self._columns[key] if isinstance(key, str) else {name: column[key] for name, column in self._columns.items()}


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
    assert (dataset.shape, dataset.users.tolist()) == ((3, 4, 6), ["b", "a", "b", "c", "a"])
    assert [part.tolist() for part in by_user(dataset.users)] == [[1, 4], [0, 2], [3]]
    numbered = Split(image=images, label=LABELS, id=[torch.tensor(7), 3, np.int64(7), 3, 3])
    assert from_examples(numbered, numbered, users="id").users.tolist() == [7, 3, 7, 3, 3]
    with pytest.raises(DataError, match=r"users: the first is \('a',\); each must be a name or an integer"):
        from_examples(numbered, numbered, users=[("a",), ("a", "b"), "c", "d", "e"])


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


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("dtype", ["double", "half", "bfloat16", "long"])
def test_inputs_of_other_numbers_are_to_be_made_float32(dtype: str) -> None:
    made = f"import torch\nfrom hubbub.datasets import Dataset\nx, y = torch.zeros(40, 4).{dtype}(), torch.arange(40) % 2\n"
    Path(f"made_{dtype}.py").write_text(made + "def data(_): return Dataset(x, y, x, y)\n")
    rows = ", or give an embedding more rows than the largest number" if dtype == "long" else ""
    step = r"make them float32, by \.float\(\)" + rows
    settings = {"data": {"name": f"made_{dtype}:data", "clients": 4}, "training": {"cohort_size": 2}}
    with pytest.raises(ConfigError, match=rf"does not fit .*{step}$"):
        build(resolve(settings), allow_import=True)
