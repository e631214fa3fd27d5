import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hubbub.datasets import Dataset, by_user, dealt, digits, dirichlet, iid, mnist
from hubbub.errors import DataError

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
    parts = {
        "iid": iid(1437, 30, seed=0),
        "dirichlet": dirichlet(whole.train_targets, 30, 0.5, seed=0),
        "user": by_user(users),
    }[partition]
    ordered, clients = dealt(dataset, parts)
    assert len(clients) == 30
    for part, (inputs, targets) in zip(parts, clients, strict=True):
        assert torch.equal(inputs, whole.train_inputs[part])
        assert torch.equal(targets, whole.train_targets[part])
        assert inputs.untyped_storage().data_ptr() == ordered.train_inputs.untyped_storage().data_ptr()
        assert targets.untyped_storage().data_ptr() == ordered.train_targets.untyped_storage().data_ptr()
    assert np.array_equal(ordered.users, users[np.concatenate(parts)])
    # Once they stand client by client, nothing is copied.
    assert dealt(ordered, by_user(np.repeat(np.arange(30), [len(part) for part in parts])))[0] is ordered


def test_mnist_is_the_published_data_bit_for_bit(data_folder: Path) -> None:
    dataset = mnist.load(str(data_folder))
    assert dataset.train_inputs.shape == (60_000, 1, 28, 28)
    assert (dataset.classes, len(dataset.test_targets)) == (10, 10_000)
    pixels = ((dataset.train_inputs * 0.3081 + 0.1307) * 255).round().to(torch.uint8)
    header = np.array([0x803, 60_000, 28, 28], dtype=">i4").tobytes()
    # MD5 of the unpacked train-images-idx3-ubyte.
    assert (
        hashlib.md5(header + pixels.numpy().tobytes(), usedforsecurity=False).hexdigest() == "6bbc9ace898e44ae57da46a324031adb"
    )


def test_digits_have_no_example_in_both_parts() -> None:
    dataset = digits.load()
    assert (len(dataset.train_inputs), len(dataset.test_inputs), dataset.shape) == (1437, 360, (1, 8, 8))
    train = {row.numpy().tobytes() for row in dataset.train_inputs}
    assert not any(row.numpy().tobytes() in train for row in dataset.test_inputs)


def test_holding_out_splits_the_training_data_and_hides_the_test_data() -> None:
    dataset = digits.load()
    held = dataset.without_test(validation=0.1, seed=0)
    assert (len(held.train_inputs), len(held.test_inputs)) == (1293, 144)
    assert dataset.without_test(validation=0.001, seed=0).classes == 10
    train = {row.numpy().tobytes() for row in dataset.train_inputs}
    assert all(row.numpy().tobytes() in train for row in held.test_inputs)


# --- what a data set may be ---


def fitting(**changes: object) -> Dataset:
    good = {
        "train_inputs": torch.zeros(3, 1),
        "train_targets": torch.zeros(3, dtype=torch.int64),
        "test_inputs": torch.zeros(1, 1),
        "test_targets": torch.zeros(1, dtype=torch.int64),
    }
    return Dataset(**{**good, **changes})


def sequences(**changes: object) -> Dataset:
    good = {
        "train_inputs": torch.tensor([[1, 2, 3], [2, 0, 0]]),
        "train_targets": torch.tensor([[2, 3, 1], [1, -100, -100]]),
        "test_inputs": torch.tensor([[3, 3, 1]]),
        "test_targets": torch.tensor([[3, -100, 2]]),
    }
    return Dataset(**{**good, **changes})


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
