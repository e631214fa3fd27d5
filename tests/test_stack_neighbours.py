"""In a stack and in a batch nobody's data, size or form reaches what is made of another: not by padding, tables or trials."""

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.errors import ConfigError, DataError
from hubbub.training import ExamplePopulation, Execution, LocalTraining, SimulatedPopulation
from hubbub.training.per_example import Chosen, ExampleGradients
from hubbub.training.simulation import choice
from hubbub.training.simulation.choice import Probe
from hubbub.training.simulation.local import Job, OneByOne
from hubbub.training.simulation.stacks import Stacks
from local_jobs import Standardizes, jobs

PAIR = (6,)
CLIENTS = [(job.inputs, job.targets) for job in jobs(PAIR)]


class Counting(nn.Linear):
    """Keeps in a buffer how often it was called."""

    def __init__(self, way: str = "in place") -> None:
        super().__init__(6, 10)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "another tensor":
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return super().forward(x) / (self.calls.tolist() if self.way == "a list" else self.calls)


class Remembers(nn.Linear):
    """What it does depends on what it keeps in Python, or on a generator that is not torch's."""

    def __init__(self, kept: str) -> None:
        super().__init__(6, 10)
        self.kept, self.count, self.table, self.coins = kept, 0, {"calls": 0}, np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.table["calls"] += 1
        factors: dict[str, Callable[[], float]] = {
            "a number": lambda: 1 / self.count,
            "a dictionary": lambda: 1 / self.table["calls"],
            "its own coin": self.coins.random,
            "a coin": random.random,
            "a coin of NumPy": np.random.random,
        }
        return super().forward(x) * factors[self.kept]()


class Largest(nn.Linear):
    """Divides by the largest number that it has seen, from 3 on: random examples from 0 to 1 show nothing of it."""

    def __init__(self, kept: str) -> None:
        super().__init__(6, 10)
        self.kept, self.most, self.seen = kept, 3.0, [3.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept == "a number":
            self.most = max(self.most, float(x.abs().max()))
        elif self.kept == "a new attribute":
            self.__dict__["later"] = max(self.__dict__.get("later", 3.0), float(x.abs().max()))
        else:
            self.seen.append(float(x.abs().max()))
        return super().forward(x / max(self.most, self.__dict__.get("later", 3.0), *self.seen))


class LargestLoss(nn.Module):
    """The same of a loss."""

    most = 30.0

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.most = max(self.most, float(output.detach().abs().max()))
        return F.cross_entropy(output / self.most, targets)


class LargestInBuffer(nn.Module):
    """The same of a loss, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.tensor(30.0))

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.most.fill_(max(float(self.most), float(output.detach().abs().max())))
        return F.cross_entropy(output / self.most, targets)


LOSSES = {"of a loss": LargestLoss, "in its buffer": LargestInBuffer, "of its method": lambda: LargestLoss().forward}


@pytest.mark.parametrize(
    ("kept", "unit"),
    [
        *itertools.product(["a number", "a list", "a new attribute", *LOSSES], ["client", "example"]),
        *((kept, "client of a stack") for kept in LOSSES),
    ],
)
def test_cli_15_what_a_module_keeps_and_no_probe_sees_is_put_back(kept: str, unit: str) -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 4, 6), torch.randint(0, 10, (8, 4))
    inputs[0] *= 1e4
    model = nn.Linear(6, 10) if kept in LOSSES else Largest(kept)
    sums = []
    for everybody in (range(8), range(1, 8), range(1)):
        loss = LOSSES[kept]() if kept in LOSSES else F.cross_entropy
        if unit != "example":
            clients = list(zip(inputs, targets, strict=True))
            units: SimulatedPopulation | ExamplePopulation = SimulatedPopulation(
                clients,
                loss,
                LocalTraining(batch_size=2),
                execution=Execution("batched-4" if "stack" in unit else "one-by-one"),
            )
        else:
            units = ExamplePopulation(inputs[:, 0], targets[:, 0], loss)
        units.prepare(model, 8)
        sums.append(units.collect(everybody, model, 0.1, 0).total)
    assert torch.equal(sums[0], sums[1] + sums[2])


class Table(nn.Module):
    """Rows of a table, by the layer's function or by the one below it."""

    def __init__(self, table: nn.Embedding, classes: int, *, below: bool) -> None:
        super().__init__()
        self.table, self.out, self.below = table, nn.Linear(table.embedding_dim, classes), below

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = -1 if self.table.padding_idx is None else self.table.padding_idx
        rows = torch.embedding(self.table.weight, x, padding) if self.below else self.table(x)
        return self.out(rows.mean(dim=1))


def first_update(model: nn.Module, clients: Sequence[Job], local: LocalTraining) -> torch.Tensor:
    return next(iter(Stacks(model, F.cross_entropy, local, Execution(), clients=2).train(model, clients))).update


def test_how_long_a_neighbour_trains_changes_nothing_of_a_client_that_has_done() -> None:
    torch.manual_seed(0)
    model, local = Standardizes(6), LocalTraining(batch_size=2)
    short = first_update(model, jobs(PAIR, sizes=(2, 2)), local)
    assert bool(torch.isfinite(short).all())
    assert torch.equal(short, first_update(model, jobs(PAIR, sizes=(2, 9)), local))


class Mixing(nn.Module):
    """A product with what all clients share, for which torch has several algorithms."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shared", torch.randn(300, 64) / 17, persistent=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x @ self.shared)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_how_many_batches_a_neighbour_has_changes_no_bit(batch_size: int) -> None:
    torch.manual_seed(0)
    model, local = Mixing(), LocalTraining(batch_size=batch_size)
    alone = first_update(model, jobs((300,), sizes=(batch_size, 0)), local)
    for batches in (1, 2, 3, 7):
        assert torch.equal(alone, first_update(model, jobs((300,), sizes=(batch_size, batches * batch_size)), local)), batches


LONG = LocalTraining(epochs=2, batch_size=8, momentum=0.9, schedule="cosine")


@pytest.mark.parametrize("way", ["in place", "another tensor", "a list"])
def test_what_a_step_leaves_in_a_buffer_is_there_in_the_next_and_not_for_the_next_client(way: str) -> None:
    torch.manual_seed(0)
    model, clients = Counting(way), jobs((6,))
    stack, lean = (
        Stacks(model, F.cross_entropy, LONG, Execution(), clients=4),
        OneByOne(model, F.cross_entropy, LONG, Execution()),
    )
    alone = [trained.update for trained in lean.train(model, clients)]
    for _ in range(2):
        found = torch.stack([trained.update for trained in stack.train(model, clients)])
        torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-6)
    for trained, update in zip(lean.train(model, clients[::-1]), alone[::-1], strict=True):
        assert torch.equal(trained.update, update)


@pytest.mark.parametrize("plan", ["one-by-one", "batched-2"])
@pytest.mark.parametrize("kept", ["a number", "a dictionary", "a coin", "a coin of NumPy", "its own coin"])
def test_a_module_that_keeps_something_in_python_or_draws_by_itself_is_refused(kept: str, plan: str) -> None:
    population = SimulatedPopulation(CLIENTS, F.cross_entropy, LocalTraining(), execution=Execution(plan))
    with pytest.raises(ConfigError, match="keep nothing from one call to the next"):
        population.collect([0, 1], Remembers(kept), 1.0, 0)


def weighted(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """By how frequent a class is in the batch, as NumPy counts it."""
    weights = 1 / (1 + np.bincount(targets.numpy(), minlength=10))
    return F.cross_entropy(output, targets, weight=torch.tensor(weights, dtype=output.dtype))


def test_a_loss_that_reads_numbers_reads_those_of_each_client_in_each_step() -> None:
    torch.manual_seed(0)
    model, clients = nn.Sequential(nn.Linear(6, 10), nn.Tanh()), jobs((6,), sizes=[16] * 12)
    stack, lean = Stacks(model, weighted, LONG, Execution(), clients=4), OneByOne(model, weighted, LONG, Execution())
    for found, alone in zip(stack.train(model, clients), lean.train(model, clients), strict=True):
        assert float((found.update - alone.update).norm()) <= 1e-5 * float(alone.update.norm())


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(("wrong", "place"), [(7, 0), (-3, 1)])
def test_cli_13_a_row_outside_a_table_adds_nothing_and_reads_no_neighbour_s(below: bool, wrong: int, place: int) -> None:
    torch.manual_seed(0)
    fine, spoilt = (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)), torch.full((4, 3), wrong)
    clients = [(spoilt, fine[1]) if i == place else fine for i in range(2)]
    for plan in ("one-by-one", "batched-2"):
        population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), lattice=False, execution=Execution(plan))
        model = Table(nn.Embedding(5, 4), 10, below=below)
        both, alone = (population.collect(cohort, model, 1.0, 0) for cohort in ([0, 1], [1 - place]))
        assert torch.equal(both.open(None), alone.open(None))
        assert both.statistics["failed"] == 1


@pytest.mark.parametrize("other", [torch.zeros(2, 4), torch.zeros(2, 6).double()])
def test_examples_of_several_forms_are_refused_where_clients_share_a_stack(other: torch.Tensor) -> None:
    none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    clients = [none, (torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64)), (other, torch.zeros(2, dtype=torch.int64))]
    for execution in (Execution(), Execution("batched-2")):
        with pytest.raises(DataError, match=r"client 2: has examples of the form .* say plan = 'one-by-one'"):
            SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=execution)
        SimulatedPopulation(clients[:2], F.cross_entropy, LocalTraining(), execution=execution)
    SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one"))


def layers(width: int = 6) -> nn.Sequential:
    """Two layers of widths at which no kernel has a rest."""
    return nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 16))


def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel does that sums in another order at the stack's end."""
    step = Stacks.train

    def train(self: Stacks, model: nn.Module, clients: Sequence[Job]):  # type: ignore[no-untyped-def]
        for place, trained in enumerate(step(self, model, clients)):
            if place % self.clients == self.clients - 1:
                trained.update.mul_(1 + 2**-20)
            yield trained

    monkeypatch.setattr(Stacks, "train", train)


@pytest.mark.parametrize("seed", range(4))
def test_in_a_stack_that_is_taken_a_secure_sum_is_that_of_its_clients_each_alone(seed: int) -> None:
    torch.manual_seed(seed)
    # By oneDNN's kernels a client's last bits depend on its place, in some numbers only.
    model = nn.Sequential(nn.Conv1d(1, 5, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(20, 4))
    clients = [(torch.randn(8, 1, 9), torch.randint(4, (8,))) for _ in range(8)]
    population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(batch_size=2), execution=Execution("batched-2"))
    with suppress(ConfigError):
        alone = torch.stack([population.collect([client], model, 0.5, 0).total for client in range(8)])
        assert torch.equal(alone.sum(dim=0), population.collect(range(8), model, 0.5, 0).total)


def test_a_plan_by_which_bits_hang_on_places_is_refused_for_secure_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, local, clients = layers(), LocalTraining(), CLIENTS
    sound = SimulatedPopulation(clients, F.cross_entropy, local, execution=Execution("batched-3"))
    assert sound.choose(model, 4).plan == "batched-3"
    halves = [(inputs.bfloat16(), targets) for inputs, targets in clients]
    with pytest.raises(ConfigError, match="parameters of 32 bits or more"):
        SimulatedPopulation(halves, F.cross_entropy, execution=Execution("batched-3")).choose(layers().bfloat16(), 4)
    lean(monkeypatch)
    named = SimulatedPopulation(clients, F.cross_entropy, local, execution=Execution("batched-3"))
    with pytest.raises(ConfigError, match="plan = 'batched-3': on this machine a client's last bits depend on where it stands"):
        named.collect([0, 1], model, 1.0, 0)
    for_experiments = SimulatedPopulation(clients, F.cross_entropy, local, lattice=False, execution=Execution("batched-3"))
    assert for_experiments.choose(model, 4).plan == "batched-3"


def test_auto_takes_no_plan_by_which_bits_hang_on_places(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(choice, "_WORTH", 1)
    monkeypatch.setattr(Probe, "_seconds", lambda *_: 1.0)
    first, second = (SimulatedPopulation(CLIENTS, F.cross_entropy) for _ in range(2))
    assert first.choose(layers(), 3).plan == "batched-3"
    lean(monkeypatch)
    assert second.choose(layers(), 3).plan == "one-by-one"
    # What was chosen for one model is tried anew with the next.
    assert first.choose(layers(), 3).plan == "one-by-one"


def test_a_plan_is_tried_without_a_look_at_anybody_s_data(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(choice, "_WORTH", 1)
    monkeypatch.setattr(Probe, "_seconds", lambda *_: 1.0)
    trainer = choice.trainer

    def watched(clients: int, model: nn.Module, *how: object) -> choice.Trainer:
        made = trainer(clients, model, *how)  # type: ignore[arg-type] # as they were given
        train = made.train

        def told(model: nn.Module, chunk: Sequence[Job]) -> object:
            asked.append((clients, [(job.seed, job.inputs.tolist(), job.targets.tolist()) for job in chunk]))
            return train(model, chunk)

        made.train = told  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(choice, "trainer", watched)
    for sizes, factor in (((3, 2, 4), 1.0), ((9, 0, 30), torch.nan)):
        clients = [(factor * job.inputs, job.targets) for job in jobs(PAIR, sizes=sizes)]
        population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), lattice=False)
        torch.manual_seed(0)
        population.collect([0] if factor == 1 else [0, 1, 2], layers(), None, 0)
        asked.append(population.plan)
    half = len(asked) // 2
    assert half > 8
    assert str(asked[:half]) == str(asked[half:])


@pytest.mark.parametrize("blank", ["examples", "weights"])
def test_blank_examples_or_weights_do_not_hide_what_kernels_do(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that scales what stands last by a little leaves zeros as they are."""
    torch.manual_seed(0)
    model = layers(16)
    inputs = torch.randn(64, 16)
    with torch.no_grad():
        for zero in (inputs, model[0].bias, model[2].weight) if blank == "examples" else model.parameters():
            zero.zero_()
    gradients = ExampleGradients(model, F.cross_entropy)
    plain = gradients.of_batch

    def scaled_last(*given):  # type: ignore[no-untyped-def]
        found, losses = plain(*given)
        found[-1, : model[0].weight.numel()] *= 1 + 2**-20
        return found, losses

    chosen = Chosen(inputs, torch.zeros(64, dtype=torch.int64), [0], int)
    assert ExampleGradients(model, F.cross_entropy).batched(chosen)
    monkeypatch.setattr(gradients, "of_batch", scaled_last)
    assert not gradients.batched(chosen)


@pytest.mark.parametrize("below", [False, True], ids=["by the layer", "by the function below it"])
@pytest.mark.parametrize("plan", ["one-by-one", "batched-2", "batched-8"])
def test_padding_is_padding_at_every_place_of_a_stack(plan: str, below: bool) -> None:
    def client(number: int, examples: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(999, (examples, 8), generator=torch.Generator().manual_seed(number))
        drawn[:, 1:] = 999
        return drawn, torch.full((examples,), number % 4)

    clients, clip_norm = [client(0, 11), *map(client, range(1, 17))], 0.01
    torch.manual_seed(0)
    # Of a thousand tokens the last one is padding, beyond those that small made-up ones reach.
    model = Table(nn.Embedding(1000, 8, padding_idx=999), 4, below=below)
    with torch.no_grad():
        model.out.weight.mul_(10)
    local = LocalTraining(batch_size=10, learning_rate=1.0)
    everyone = SimulatedPopulation(clients, F.cross_entropy, local, execution=Execution(plan))
    whole, others = (everyone.collect(range(first, 17), model, clip_norm, 0) for first in (0, 1))
    assert float((whole.total - others.total).double().norm()) <= whole.lattice.radius
    assert everyone.plan == plan


class Kept(nn.Linear):
    """What it does depends on the size, or on the sign, of what it saw before."""

    def __init__(self, sign: bool) -> None:
        super().__init__(6, 3)
        self.last, self.sign = 0.0, sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x) * ((1 if self.last >= 0 else -1) if self.sign else 1 + self.last)
        self.last = float(x.sum())
        return made


@pytest.mark.parametrize("sign", [False, True], ids=["size", "sign"])
@pytest.mark.parametrize(
    "loss",
    [F.cross_entropy, partial(F.cross_entropy, ignore_index=0), nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 1.0]))],
    ids=["plain", "class 0 is ignored", "class 0 weighs nothing"],
)
def test_cli_15_a_loss_that_ignores_a_class_hides_nothing_of_what_a_model_keeps(loss: Callable, sign: bool) -> None:
    inputs, targets = torch.randn(8, 6), torch.tensor([1, 2] * 4)
    clients = list(zip(inputs.split(2), targets.split(2), strict=True))
    simulated = SimulatedPopulation(clients, loss, LocalTraining(batch_size=2))
    for population in (ExamplePopulation(inputs, targets, loss), simulated):
        with pytest.raises(ConfigError, match="depends on what they saw before"):
            population.prepare(Kept(sign), 8)


def test_a_model_that_is_never_finite_on_made_up_examples_is_refused() -> None:
    model = nn.Linear(6, 3)
    model.register_forward_hook(lambda *called: called[2] * torch.nan)
    with pytest.raises(ConfigError, match="no finite update on random examples"):
        ExamplePopulation(torch.randn(8, 6), torch.zeros(8).long(), F.cross_entropy).prepare(model, 8)


def test_a_client_whose_examples_change_their_form_leaves_its_neighbours_as_they_are() -> None:
    base = [(torch.randn(8, 1, 16), torch.randint(3, (8,))) for _ in range(8)]

    class Read(list):  # type: ignore[type-arg]
        long = False

        def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            x, y = base[number]
            return (torch.cat([x, x], 2) if number == 0 and self.long else x), y

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.over, self.out = nn.Conv1d(1, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.over(x)).mean(2))

    clients, model = Read(base), Mean()
    everyone = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(batch_size=4), execution=Execution("batched-8"))
    everyone.prepare(model, 8)
    clients.long = True
    whole, one, others = (everyone.collect(some, model, 0.01, 0).total for some in (range(8), [0], range(1, 8)))
    assert torch.equal(whole, one + others)


@pytest.mark.parametrize("product", [torch.prod, torch.Tensor.prod], ids=["function", "method"])
def test_products_are_computed_client_by_client(product: Callable) -> None:
    class Products(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * product(x, 1, keepdim=True)

    everyone = SimulatedPopulation(CLIENTS, F.cross_entropy, execution=Execution("batched-2"))
    with pytest.raises(ConfigError, match="a product of numbers"):
        everyone.prepare(Products(6, 10), 8)
