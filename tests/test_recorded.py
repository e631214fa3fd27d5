"""Steps that follow a list do what the first one did, bit for bit; where there can be no list, they go the whole way."""

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.utils.checkpoint import checkpoint

from hubbub.training import LocalTraining, recorded
from hubbub.training.batched import Batched
from hubbub.training.local import Job
from hubbub.training.one_by_one import OneByOne
from hubbub.training.programs import Program
from hubbub.training.recorded import Recorded
from hubbub.training.stacking import NotStackableError
from local_jobs import CPU, MODELS, jobs

LOCAL = LocalTraining(epochs=2, batch_size=8, momentum=0.9, schedule="cosine")


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each step that is done from a list."""
    seen: list[int] = []
    plain = Program.__call__

    def call(program: Program, tensors: Sequence[torch.Tensor]) -> recorded.Outputs:
        seen.append(1)
        return plain(program, tensors)

    monkeypatch.setattr(Program, "__call__", call)
    return seen


def smoothed(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(output.log_softmax(1), targets)


def updates(model: nn.Module, clients: Sequence[Job], loss: Callable[..., torch.Tensor] = F.cross_entropy) -> torch.Tensor:
    made = Batched(model, loss, LOCAL, CPU, clients=4)
    # Twice: the second time nothing is new.
    return torch.stack([trained.update for _ in range(2) for trained in made.train(model, clients)])


@pytest.mark.parametrize("loss", [F.cross_entropy, smoothed])
@pytest.mark.parametrize("name", MODELS)
def test_steps_from_a_list_change_no_bit(name: str, loss: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, clients = MODELS[name]
    model = make()
    if loss is smoothed and name in ("one dimension", "lstm"):
        clients = [job for job in clients if len(job.inputs)]
    found = updates(model, clients, loss)
    monkeypatch.setattr(recorded, "_FORMS", 0)
    assert torch.equal(found, updates(model, clients, loss))


class Remembers(nn.Linear):
    """What it does hangs on what it keeps, or on a generator that is nobody's."""

    def __init__(self, kept: str) -> None:
        super().__init__(6, 10)
        self.kept, self.count, self.seen = kept, 0, [0]
        self.table, self.coins = {"calls": 0}, np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 1.0
        match self.kept:
            case "a number":
                self.count += 1
                factor = 1.0 / self.count
            case "a list":
                self.seen.append(1)
                factor = 1.0 / len(self.seen)
            case "a dictionary":
                self.table["calls"] += 1
                factor = 1.0 / self.table["calls"]
            case "its own coin":
                factor = float(self.coins.random())
            case "a coin":
                factor = random.random()  # noqa: S311 # a module may
            case "a coin of NumPy":
                factor = float(np.random.random())  # noqa: NPY002 # a module may
            case "dropout":
                x = F.dropout(x, 0.5)
        return super().forward(x) * factor


@pytest.mark.parametrize("kept", ["a number", "a list", "a dictionary", "a coin", "a coin of NumPy", "its own coin", "dropout"])
def test_a_module_that_remembers_or_draws_runs_in_every_step(kept: str, followed: list[int]) -> None:
    updates(Remembers(kept), jobs((6,), sizes=(16, 16)))
    assert not followed
    updates(Remembers("nothing"), jobs((6,), sizes=(16, 16)))
    assert len(followed) == 2 * 4 - 2


class Counting(nn.Linear):
    """Keeps in a buffer how often it was called, and reads it in one of many ways."""

    def __init__(self, way: str) -> None:
        super().__init__(6, 10)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.way:
            case "another tensor":
                self.calls = self.calls + 1
            case "another storage":
                self.calls.data = self.calls + 1
            case "by hand":
                self.calls.apply_(lambda number: number + 1)
            case _:
                self.calls += 1
        match self.way:
            case "a list":
                return super().forward(x) / self.calls.tolist()
            case "an array":
                return super().forward(x) / float(self.calls.numpy())
            case "a copy":
                return super().forward(x) / torch.tensor(np.asarray(self.calls))
        return super().forward(x) / self.calls


WAYS = ["in place", "another tensor", "another storage", "by hand", "a list", "an array", "a copy"]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_step_leaves_in_a_buffer_is_there_in_the_next_and_not_for_the_next_client(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, clients = Counting(way), jobs((6,))
    found = updates(model, clients)
    alone = [trained.update for trained in OneByOne(model, F.cross_entropy, LOCAL, CPU).train(model, clients)]
    torch.testing.assert_close(found, torch.stack(alone * 2), rtol=1e-4, atol=1e-6)
    for trained, update in zip(
        OneByOne(model, F.cross_entropy, LOCAL, CPU).train(model, clients[::-1]), alone[::-1], strict=True
    ):
        assert torch.equal(trained.update, update)
    monkeypatch.setattr(recorded, "_FORMS", 0)
    assert torch.equal(found, updates(model, clients))


def weighted(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """By how frequent a class is in the batch, as NumPy counts it."""
    weights = 1 / (1 + np.bincount(targets.numpy(), minlength=10))
    return F.cross_entropy(output, targets, weight=torch.tensor(weights, dtype=output.dtype))


def hardest(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets) * (1 + max(targets.tolist()))


def product(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Torch computes its slope in another way while it is watched."""
    return output.prod(1).mean() + output.prod() + F.nll_loss(output, targets)


class Fades:
    """Is worth less in each call."""

    def __init__(self) -> None:
        self.state = {"calls": 0}

    def __call__(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.state["calls"] += 1
        return F.cross_entropy(output, targets) / self.state["calls"]


@pytest.mark.parametrize("make", [lambda: weighted, lambda: hardest, lambda: product, Fades])
def test_a_loss_that_reads_numbers_or_remembers_is_asked_in_each_step(
    make: Callable[[], Callable[..., torch.Tensor]], followed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    # All chunks have batches of the same sizes, and other targets.
    model, clients = nn.Sequential(nn.Linear(6, 10), nn.Tanh()), jobs((6,), sizes=[16] * 12)
    found = updates(model, clients, make())
    assert not followed
    monkeypatch.setattr(recorded, "_FORMS", 0)
    assert torch.equal(found, updates(model, clients, make()))


class Weighs:
    def __init__(self) -> None:
        self.weight = 1.0

    def __call__(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.weight * F.nll_loss(output.log_softmax(1), targets)


def test_a_loss_that_is_changed_between_rounds_is_looked_at_again(followed: list[int]) -> None:
    torch.manual_seed(0)
    model, clients, loss = nn.Linear(6, 10), jobs((6,), sizes=[16] * 4), Weighs()
    made = Batched(model, loss, LocalTraining(batch_size=8), CPU, clients=4)
    rounds = []
    for loss.weight in (1.0, 1.0, 2.0):
        rounds.append(torch.stack([trained.update for trained in made.train(model, clients)]))
    assert followed
    assert torch.equal(rounds[0], rounds[1])
    fresh = Batched(model, loss, LocalTraining(batch_size=8), CPU, clients=4)
    assert torch.equal(rounds[2], torch.stack([trained.update for trained in fresh.train(model, clients)]))
    assert not torch.equal(rounds[0], rounds[2])


class Again(nn.Linear):
    """Its forward is done once more on the way back, where there is no stack."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(checkpoint(torch.tanh, x @ self.weight.T @ self.weight, use_reentrant=False))


def test_what_fails_on_the_way_back_is_not_stackable() -> None:
    with pytest.raises(NotStackableError, match="RuntimeError"):
        updates(Again(6, 10), jobs((6,)))


def thrice(step: Callable[..., list[torch.Tensor]], *arguments: torch.Tensor) -> list[list[float]]:
    """What three steps make of numbers, each of other ones: the third may follow a list."""
    run = Recorded(nn.Linear(1, 1))
    return [run(step, None, *(factor * tensor for tensor in arguments))[0].tolist() for factor in (1.0, 10.0, 100.0)]


def test_a_tensor_made_of_numbers_in_python_is_new_in_each_step(followed: list[int]) -> None:
    found = thrice(lambda x: [torch.tensor([1.0, 2.0]).add_(1) * x], torch.ones(2))
    assert found == [[2.0, 3.0], [20.0, 30.0], [200.0, 300.0]]
    assert len(followed) == 1


def test_what_hangs_on_numbers_is_looked_at_in_each_step() -> None:
    assert thrice(lambda x: [x + 1 if x.sum() < 50 else x - 1], torch.ones(2)) == [[2.0, 2.0], [11.0, 11.0], [99.0, 99.0]]
    assert thrice(lambda x: [x[x > 5].sum()], torch.tensor([1.0, 2.0])) == [0.0, 30.0, 300.0]


def test_a_tensor_or_a_number_from_elsewhere_is_looked_up_in_each_step(followed: list[int]) -> None:
    run, ticks = Recorded(nn.Linear(1, 1)), itertools.count()
    for factor in (1.0, 0.0, 5.0):
        elsewhere = torch.full((2,), factor)
        assert torch.equal(run(lambda x, held=elsewhere: [x * held], None, torch.ones(2))[0], elsewhere)
    found = [run(lambda x: [x * float(next(ticks))], None, torch.ones(3))[0][0].item() for _ in range(5)]
    assert len(set(found)) == 5
    assert not followed


def test_a_list_keeps_its_numbers_narrow_or_wide_whatever_is_said_around_it(followed: list[int]) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            return [x @ x]

    run, x = Recorded(nn.Linear(1, 1)), torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, _, third = (run(step, None, x)[0] for _ in range(3))
    assert len(followed) == 1
    assert torch.equal(first, third)


def test_arguments_are_changed_in_place_and_given_back_as_by_the_step_itself() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        x.view(-1)[0] += 5
        parts = torch.cat([x, y]).split(1)
        return [torch.stack(parts[::-1]).flatten() * x.detach().view(2)[0]]

    assert thrice(step, torch.ones(2), torch.zeros(1)) == [[0.0, 6.0, 36.0], [0.0, 150.0, 225.0], [0.0, 10500.0, 11025.0]]


def test_each_form_of_a_step_has_a_list_of_its_own() -> None:
    run, factors = Recorded(nn.Linear(1, 1)), (2.0, 3.0)
    for _ in range(4):
        for factor in factors:
            for x in (torch.ones(2), torch.ones(3, dtype=torch.float64)):
                (found,) = run(lambda x, factor=factor: [x * factor], factor, x)
                assert torch.equal(found, factor * x)
