"""A cohort that several processes share: the sum is the same to the last bit, and a process that ends loses nothing."""

import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import active_children, get_context
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.training import Execution, LocalTraining, RunStore, SimulatedPopulation, train
from hubbub.training.simulation.workers import Part, Task, WorkerError, Workers
from local_jobs import Layers, jobs
from small_runs import PLANS, linear

CLIENTS = [(job.inputs, job.targets) for job in jobs((1, 12, 12), sizes=(13, 20, 7, 0, 11, 1, 20, 4, 9, 16, 3))]

SMALL = [(torch.randn(6, 3, generator=torch.Generator().manual_seed(i)), torch.arange(6) % 2) for i in range(12)]


class OddError(Exception):
    """One that no other process can make again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


class Fails(nn.Linear):
    """Cannot train a client that has a certain example; of another one the machine cannot take it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 7.0).any()):
            raise OddError(1, 2)
        if bool((x == 8.0).any()):
            raise MemoryError("no more of it")
        return super().forward(x.flatten(1))


def populations(plan: str, *, lattice: bool) -> tuple[SimulatedPopulation, SimulatedPopulation]:
    alone, shared = (
        SimulatedPopulation(CLIENTS, F.cross_entropy, LocalTraining(), lattice=lattice, execution=Execution(plan, number))
        for number in (1, 2)
    )
    return alone, shared


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "lattice"), [("batched-3", False), pytest.param("one-by-one", True, marks=pytest.mark.slow)])
def test_workers_change_no_bit_of_a_sum_nor_of_what_the_operator_is_told(plan: str, lattice: bool) -> None:
    torch.manual_seed(0)
    model = Layers()
    alone, shared = populations(plan, lattice=lattice)
    for round_index, cohort in ((0, range(11)), (1, (4, 2, 9)), (2, ())):
        ours = alone.collect(cohort, model, 0.5, round_index)
        theirs = shared.collect(cohort, model, 0.5, round_index)
        assert torch.equal(ours.total, theirs.total)
        assert ours.statistics == theirs.statistics or not cohort
        # The model moves, and the workers' copies with it.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
    # Shared storage would let a worker that is late write an older model over the one that has learnt.
    assert not any(parameter.is_shared() for parameter in model.parameters())
    shared.close()


@pytest.mark.slow
def test_a_run_on_workers_is_the_run_of_one_process() -> None:
    models = []
    for workers in (1, 2):
        population = SimulatedPopulation(SMALL, F.cross_entropy, LocalTraining(), execution=Execution("batched-4", workers))
        models.append(linear())
        list(train(PLANS["banded, separated"], population, models[-1]))
        population.close()
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_cli_13_cli_14_a_client_that_fails_in_a_worker_adds_nothing_and_a_machine_that_does_ends_the_round() -> None:
    bad = [*CLIENTS[:3], *((torch.full((2, 1, 12, 12), value), torch.zeros(2, dtype=torch.int64)) for value in (7.0, 8.0))]
    population = SimulatedPopulation(bad, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one", 2))
    model = Fails(144, 10)
    whole, others = (population.collect(cohort, model, 0.5, 0) for cohort in (range(4), range(3)))
    assert torch.equal(whole.open(None), others.open(None))
    assert whole.statistics["failed"] == 1
    with pytest.raises(WorkerError, match=r"a client's training failed in a worker \(MemoryError: no more of it"):
        population.collect(range(5), model, 0.5, 0)


def test_cra_16_a_worker_that_is_killed_ends_the_round_before_it_is_charged(tmp_path: Path) -> None:
    plan = PLANS["independent, everyone"]
    population = SimulatedPopulation(SMALL, F.cross_entropy, LocalTraining(), execution=Execution("one-by-one", 2))
    rounds, store, before = train(plan, population, linear(), RunStore(tmp_path)), RunStore(tmp_path), set(active_children())
    assert next(rounds).round_index == 0
    workers = set(active_children()) - before
    assert len(workers) == 2
    for process in workers:
        os.kill(int(process.pid or 0), signal.SIGKILL)
        process.join()
    with pytest.raises(WorkerError, match="a worker process ended: out of memory, or killed"):
        next(rounds)
    assert store.ledger_path.read_text().count('"kind":"begin"') == 1
    # And the run goes on where it was, with new ones.
    again = list(train(plan, population, linear(), RunStore(tmp_path)))
    assert [result.round_index for result in again] == list(range(1, plan.rounds))
    population.close()


def collect_and_die(folder: Path) -> None:
    _, shared = populations("one-by-one", lattice=True)
    shared.collect(range(11), Layers(), 0.5, 0)
    (folder / "pids").write_text(" ".join(str(process.pid) for process in active_children()))
    os._exit(9)


@pytest.mark.slow
def test_cra_13_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    # A fresh one: a fork would share sockets with the workers of earlier tests.
    starter = get_context("spawn").Process(target=collect_and_die, args=(tmp_path,))
    starter.start()
    starter.join()
    assert starter.exitcode == 9
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 60
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().split()[2] != "Z"
    except OSError:
        return False


class Dies:
    """Chunks that end the process which takes them over."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if os.getpid() != state["home"]:
            os._exit(3)

    def chunk(self, task: Task, model: nn.Module, clients: Sequence[int]) -> Part:
        raise AssertionError(task, model, clients)


@pytest.mark.slow
def test_a_worker_that_ends_while_it_starts_is_not_waited_for() -> None:
    # More than a line between processes holds at a time.
    model = nn.Linear(300, 1000)
    with pytest.raises(WorkerError, match="a worker process ended"):
        list(Workers(1, Dies(), model).parts(Task(0, 1.0), model, [[0], [1]]))
