"""Whatever plan trains the clients, each of them contributes the same, and nothing of it hangs on anybody else."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import local_jobs
from hubbub.errors import ConfigError
from hubbub.noise.lattice import Lattice
from hubbub.training import Execution, LocalTraining, SimulatedPopulation
from hubbub.training.simulation import choice
from hubbub.training.simulation.choice import Probe
from hubbub.training.simulation.functional import repeatable
from hubbub.training.simulation.local import Job, Loss, OneByOne, Schedule
from hubbub.training.simulation.stacked_module import NotStackableError
from hubbub.training.simulation.stacks import Stacks
from local_jobs import IMAGES, SENTENCES, Lstm, jobs

MODELS = local_jobs.MODELS | {
    "deep lstm": (lambda: Lstm(layers=2, bidirectional=True, bias=False), jobs(SENTENCES, sequences=True)),
    "lstm, time first": (lambda: Lstm(layers=2, batch_first=False), jobs(SENTENCES, sequences=True)),
}
MOMENTUM = LocalTraining(learning_rate=0.1, momentum=0.9, schedule="cosine", final_learning_rate=0.1)
LOCALS = {
    "plain": LocalTraining(),
    "all": replace(MOMENTUM, epochs=2, batch_size=8, weight_decay=0.01, proximal=0.3),
    "momentum": MOMENTUM,
    "steps": LocalTraining(steps=3, schedule="linear", schedule_rounds=5),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]()


Updates = dict[int, torch.Tensor]


def one_by_one(model: nn.Module, local: LocalTraining, clients: list[Job], loss: Loss = F.cross_entropy) -> Updates:
    return {trained.client: trained.update for trained in OneByOne(model, loss, local, Execution()).train(model, clients)}


def batched(model: nn.Module, local: LocalTraining, clients: list[Job], size: int = 4, loss: Loss = F.cross_entropy) -> Updates:
    made = Stacks(model, loss, local, Execution(), clients=size)
    return {trained.client: trained.update for trained in made.train(model, clients)}


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("name", MODELS)
def test_a_stack_trains_each_client_as_it_would_train_alone(name: str, local: str) -> None:
    model, clients = made(name), MODELS[name][1]
    expected, found = one_by_one(model, LOCALS[local], clients), batched(model, LOCALS[local], clients)
    assert found.keys() == expected.keys()
    for client, update in expected.items():
        assert float((found[client] - update).norm()) <= 1e-5 * float(update.norm()), client


@pytest.mark.parametrize("steps", ["all", "momentum", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_no_bit_of_a_client_hangs_on_who_stands_beside_it_or_where_it_stands(name: str, steps: str) -> None:
    model, clients, local = made(name), MODELS[name][1], LOCALS[steps]
    together = batched(model, local, clients)
    backwards = batched(model, local, clients[::-1])
    for job in clients:
        assert torch.equal(together[job.client], backwards[job.client])
        assert torch.equal(together[job.client], batched(model, local, [job])[job.client])


def test_under_a_torch_with_other_private_names_a_model_does_not_run_in_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._functorch.pyfunctorch", None)
    monkeypatch.delattr("torch._functorch.pyfunctorch")
    with pytest.raises(NotStackableError, match="pyfunctorch"):
        batched(made("mlp"), LOCALS["plain"], MODELS["mlp"][1])


@pytest.mark.parametrize(("name", "steps"), [("layers", "all"), ("tied", "plain"), ("mlp", "momentum")])
def test_a_neighbour_of_huge_or_impossible_numbers_changes_no_bit(name: str, steps: str) -> None:
    model, clients, local = made(name), MODELS[name][1], LOCALS[steps]
    honest = batched(model, local, clients)
    for value in (math.nan, math.inf, 1e30):
        spoilt = [replace(job, inputs=torch.full_like(job.inputs, value)) for job in clients]
        hostile = [pair[i % 2] for i, pair in enumerate(zip(clients, spoilt, strict=True))]
        found = batched(model, local, hostile)
        assert all(torch.equal(honest[job.client], found[job.client]) for i, job in enumerate(clients) if not i % 2)


def doubled(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 2 * F.nll_loss(output.log_softmax(1), targets)


Focal = type("Focal", (nn.CrossEntropyLoss,), {"forward": staticmethod(doubled)})


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(label_smoothing=0.1), doubled, F.cross_entropy, Focal()])
def test_any_loss_of_a_batch_is_taken_of_a_client_s_own_examples(loss: Loss) -> None:
    model, clients, local = made("mlp"), MODELS["mlp"][1], LOCALS["all"]
    if loss is F.cross_entropy:
        # Targets that are probabilities.
        soft = [F.one_hot(job.targets, 10).float() * 0.9 + 0.01 for job in clients]
        clients = [Job(job.client, job.inputs, to, job.seed, job.round_index) for job, to in zip(clients, soft, strict=True)]
    expected, found = one_by_one(model, local, clients, loss), batched(model, local, clients, loss=loss)
    for client, update in expected.items():
        assert float((found[client] - update).norm()) <= 1e-5 * float(update.norm())


def test_plain_steps_are_those_of_torch_s_own_optimizer() -> None:
    model, (job, *_), local = made("mlp"), jobs(IMAGES), LOCALS["all"]
    trial = made("mlp")
    start = [p.detach().clone() for p in trial.parameters()]
    batches = local.batches(len(job.inputs), job.seed)
    optimizer = torch.optim.SGD(trial.parameters(), lr=1.0, momentum=0.9, weight_decay=0.01)
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.1 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / (len(batches) - 1))) / 2)
        optimizer.zero_grad()
        near = sum(((p - p0) ** 2).sum() for p, p0 in zip(trial.parameters(), start, strict=True))
        (F.cross_entropy(trial(job.inputs[batch]), job.targets[batch]) + 0.3 / 2 * near).backward()
        optimizer.step()
    moved = torch.cat([(p.detach() - p0).reshape(-1) for p, p0 in zip(trial.parameters(), start, strict=True)])
    torch.testing.assert_close(one_by_one(model, local, [job])[0], moved, rtol=1e-4, atol=1e-6)


class Odd(nn.Linear):
    """A model that changes its examples first."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(144, 10)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.change(x.flatten(1)))


# Asks for a value, which many clients do not have in common; draws what is no dropout; lets examples see one another.
ODD = {
    "value": lambda x: x if float(x.mean()) < 1e9 else -x,
    "noise": lambda x: x + torch.randn_like(x),
    "mix": lambda x: x - x.mean(dim=0),
}


@pytest.mark.parametrize("kind", ["value", "noise"])
def test_a_module_that_does_not_run_for_many_clients_at_once_says_so(kind: str) -> None:
    model = Odd(ODD[kind])
    with pytest.raises(NotStackableError):
        batched(model, LOCALS["plain"], jobs(IMAGES))
    clients = [(job.inputs, job.targets) for job in jobs(IMAGES)]
    named = SimulatedPopulation(clients, F.cross_entropy, LOCALS["plain"], execution=Execution("batched-4"))
    with pytest.raises(ConfigError, match="plan = 'batched-4': the model does not run for many clients at once"):
        named.collect([0, 1], model, 1.0, 0)
    with pytest.raises(ConfigError, match="or its update is another than alone, as with statistics"):
        named.collect([0, 1], Odd(ODD["mix"]), 1.0, 0)


def chosen(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, *, targets: torch.dtype = torch.int64, batch_size: int = 10
) -> choice.Choice:
    """What is chosen for cohorts of four where a stack takes a tenth of the time."""
    monkeypatch.setattr(choice, "_WORTH", 1)
    monkeypatch.setattr(Probe, "_seconds", lambda _, clients: 0.1 if clients > 1 else 1.0)
    job = replace(jobs(IMAGES)[0], targets=jobs(IMAGES)[0].targets.to(targets))
    return Probe(model, F.cross_entropy, LocalTraining(batch_size=batch_size), Execution(), job).choice(4)


def test_the_choice_falls_on_one_by_one_where_a_stack_or_its_padding_fails_or_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(chosen(monkeypatch, Odd(change)).clients == 1 for change in ODD.values())
    # Bytes, in which no stack marks padding; and padding of gigabytes.
    for odd in ({"targets": torch.uint8}, {"batch_size": 100_000}):
        assert chosen(monkeypatch, made("mlp"), **odd).clients == 1
    assert chosen(monkeypatch, made("mlp")).clients == 4


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_padding_is_tried_at_a_rate_above_zero(schedule: Schedule) -> None:
    layers = nn.Flatten(), nn.Linear(math.prod(IMAGES), 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 10)
    local = LocalTraining(epochs=2, batch_size=4, learning_rate=0.3, schedule=schedule)
    job = jobs(IMAGES)[0]
    assert not Probe(nn.Sequential(*layers), F.cross_entropy, local, Execution(), job).agrees(4)


def test_on_a_gpu_convolutions_repeat_in_all_bits() -> None:
    flags = torch.backends.cudnn
    before = flags.deterministic, flags.benchmark, flags.allow_tf32
    with repeatable(torch.device("cuda")):
        assert (flags.deterministic, flags.benchmark, flags.allow_tf32) == (True, False, False)
    assert (flags.deterministic, flags.benchmark, flags.allow_tf32) == before


@pytest.mark.parametrize("plan", ["one-by-one", pytest.param("batched-3", marks=pytest.mark.slow), "auto"])
def test_a_secure_sum_is_that_of_its_clients_to_the_last_step_whoever_else_is_in_it(plan: str) -> None:
    clients = [(job.inputs, job.targets) for job in jobs(IMAGES)]
    population = SimulatedPopulation(clients, F.cross_entropy, LOCALS["all"], execution=Execution(plan))
    model = made("layers")
    cohort = list(population.clients)
    alone = torch.stack([population.collect([client], model, 0.5, 3).total for client in cohort])
    assert torch.equal(alone.sum(dim=0), population.collect(cohort, model, 0.5, 3).total)
    assert torch.equal(alone[::2].sum(dim=0), population.collect(cohort[::-2], model, 0.5, 3).total)
    # A client that sends something else moves the sum by its own steps and by nothing else.
    other = [(-inputs, targets) if i == 4 else (inputs, targets) for i, (inputs, targets) in enumerate(clients)]
    beside = SimulatedPopulation(other, F.cross_entropy, LOCALS["all"], execution=Execution(population.plan))
    moved = beside.collect(cohort, model, 0.5, 3).total - population.collect(cohort, model, 0.5, 3).total
    assert torch.equal(moved, beside.collect([4], model, 0.5, 3).total - alone[4])
    assert 0 < int((moved**2).sum()) <= (2 * Lattice(0.5).radius) ** 2
