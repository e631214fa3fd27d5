"""In a stack and in a batch nobody's data, size or form reaches what is made of another: not by padding, tables or trials."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.errors import ConfigError, DataError
from hubbub.training import Execution, LocalTraining, SimulatedPopulation, tuning
from hubbub.training.batched import Batched
from hubbub.training.execution import ExecutionPlan
from hubbub.training.gradients import Chosen, ExampleGradients
from hubbub.training.local import Job
from local_jobs import CPU, jobs

PAIR = (6,)


class Standardized(nn.Linear):
    """What it makes of padding is no number."""

    def __init__(self) -> None:
        super().__init__(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True))


class Counting(nn.Linear):
    """Keeps in a buffer how often it was called."""

    def __init__(self) -> None:
        super().__init__(6, 10)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Table(nn.Module):
    """Rows of a table, by the layer's function or by the one below it."""

    def __init__(self, *, below: bool) -> None:
        super().__init__()
        self.table, self.out, self.below = nn.Embedding(5, 4), nn.Linear(4, 10), below

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.embedding(self.table.weight, x) if self.below else self.table(x)
        return self.out(rows.mean(dim=1))


def first_update(model: nn.Module, clients: Sequence[Job], local: LocalTraining, number: int = 0) -> torch.Tensor:
    found = Batched(model, F.cross_entropy, local, CPU, clients=2).train(model, clients)
    return next(trained.update for trained in found if trained.client == number)


def test_how_long_a_neighbour_trains_changes_nothing_of_a_client_that_has_done() -> None:
    torch.manual_seed(0)
    model, local = Standardized(), LocalTraining(batch_size=2)
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


def test_what_a_stack_leaves_in_a_buffer_does_not_reach_the_next_stack() -> None:
    torch.manual_seed(0)
    model, local = Counting(), LocalTraining(batch_size=1)
    (me,) = (job for job in jobs(PAIR, sizes=(1, 1, 3)) if job.client == 2)
    few, many = ([*jobs(PAIR, sizes=(size, size)), me] for size in (1, 9))
    assert torch.equal(first_update(model, few, local, 2), first_update(model, many, local, 2))


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize(("wrong", "place"), [(7, 0), (-3, 1)])
def test_cli_13_a_row_outside_a_table_adds_nothing_and_is_not_read_from_the_neighbour_s(
    below: bool, wrong: int, place: int
) -> None:
    torch.manual_seed(0)
    fine, spoilt = (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)), torch.full((4, 3), wrong)
    clients = [fine, fine]
    clients[place] = spoilt, fine[1]
    for plan in ("one-by-one", "batched-2"):
        population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), lattice=False, execution=Execution(plan))
        model = Table(below=below)
        both, alone = (population.collect(cohort, model, 1.0, 0) for cohort in ([0, 1], [1 - place]))
        assert torch.equal(both.open(None), alone.open(None))
        assert both.statistics["failed"] == 1


@pytest.mark.parametrize("other", [torch.zeros(2, 4), torch.zeros(2, 6).double()])
def test_examples_of_several_forms_are_refused_where_clients_share_a_stack_or_a_memory(other: torch.Tensor) -> None:
    none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    clients = [none, (torch.zeros(2, 6), torch.zeros(2, dtype=torch.int64)), (other, torch.zeros(2, dtype=torch.int64))]
    for execution in (Execution(), Execution("batched-2"), Execution("one-by-one", workers=2)):
        with pytest.raises(DataError, match=r"client 2: has examples of the form .* say plan = 'one-by-one' and workers = 1"):
            SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=execution)
        SimulatedPopulation(clients[:2], F.cross_entropy, LocalTraining(), execution=execution)
    SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one"))


# --- what is tried out ---


class Layers(nn.Module):
    """Two layers of widths at which no kernel has a rest."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel does that sums in another order at the stack's end."""
    step = Batched.train

    def train(self: Batched, model: nn.Module, clients: Sequence[Job]):  # type: ignore[no-untyped-def]
        for place, trained in enumerate(step(self, model, clients)):
            if place % self.clients == self.clients - 1:
                trained.update.mul_(1 + 2**-20)
            yield trained

    monkeypatch.setattr(Batched, "train", train)


def test_a_plan_by_which_bits_hang_on_places_is_refused_for_secure_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, local = Layers(), LocalTraining()
    clients = [(job.inputs, job.targets) for job in jobs(PAIR)]
    sound = SimulatedPopulation(clients, F.cross_entropy, local, execution=Execution("batched-3"))
    assert sound.prepare(model, 4).plan == ExecutionPlan(3)
    lean(monkeypatch)
    named = SimulatedPopulation(clients, F.cross_entropy, local, execution=Execution("batched-3"))
    with pytest.raises(ConfigError, match="plan = 'batched-3': on this machine a client's last bits hang on where it stands"):
        named.collect([0, 1], model, 1.0, 0)
    monkeypatch.setattr("hubbub.training.simulate.choose", lambda *_: tuning.Choice(ExecutionPlan(3), "it is said"))
    chosen = SimulatedPopulation(clients, F.cross_entropy, local)
    assert chosen.prepare(model, 4).plan == ExecutionPlan()
    for_experiments = SimulatedPopulation(clients, F.cross_entropy, local, lattice=False)
    assert for_experiments.prepare(model, 4).plan == ExecutionPlan(3)


def test_a_plan_is_tried_without_a_look_at_anybody_s_data(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(tuning, "_WORTH", 1)
    monkeypatch.setattr(tuning, "_remembered", {})
    monkeypatch.setattr(tuning, "_read", dict)
    monkeypatch.setattr(tuning, "_remember", lambda _, plan: plan)

    def least(trial: tuning._Trial, plan: ExecutionPlan, steps: int, chunk: Sequence[Job]) -> float:
        asked.append((plan, steps, [(job.seed, job.inputs.tolist(), job.targets.tolist()) for job in chunk]))
        return float(steps) / plan.clients

    monkeypatch.setattr(tuning._Trial, "_of_steps", least)
    for sizes, factor in (((3, 2, 4), 1.0), ((9, 0, 30), torch.nan)):
        clients = [(factor * job.inputs, job.targets) for job in jobs(PAIR, sizes=sizes)]
        population = SimulatedPopulation(clients, F.cross_entropy, LocalTraining(), lattice=False)
        torch.manual_seed(0)
        tuning._remembered.clear()
        population.collect([0] if factor == 1 else [0, 1, 2], Layers(), None, 0)
        asked.append(population.plan)
    half = len(asked) // 2
    assert half > 3
    assert asked[:half] == asked[half:]


@pytest.mark.parametrize("blank", ["examples", "weights"])
def test_blank_examples_or_weights_do_not_hide_what_kernels_do(blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that scales what stands last by a little leaves zeros as they are."""
    torch.manual_seed(0)
    model = Layers(16)
    inputs = torch.randn(64, 16)
    if blank == "examples":
        inputs.zero_()
        with torch.no_grad():
            model.a.bias.zero_()
            model.b.weight.zero_()
    else:
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
    gradients = ExampleGradients(model, F.cross_entropy)
    plain = gradients.flat

    def flat(seen):  # type: ignore[no-untyped-def]
        found = plain(seen)
        found[-1, : model.a.weight.numel()] *= 1 + 2**-20
        return found

    chosen = Chosen(inputs, torch.zeros(64, dtype=torch.int64), [0], int)
    assert ExampleGradients(model, F.cross_entropy).batched(chosen)
    monkeypatch.setattr(gradients, "flat", flat)
    assert not gradients.batched(chosen)
