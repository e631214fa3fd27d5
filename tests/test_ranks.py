"""A run on several ranks has the bits of the same run on one; a rank that fails or ends is named; a kill costs no noise."""

import hashlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import hubbub
from conftest import raising
from hubbub import AdaptiveClipping, training
from hubbub.cli.training import How
from hubbub.cli.training import train as begin
from hubbub.errors import ConfigError, LedgerError, RankError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise
from hubbub.mechanism import participation as parts
from hubbub.mechanism.strategies import BandedInverse, BufferedLinearToeplitz, Identity, Strategy, toeplitz
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.noise.sources import IncarnationSource
from hubbub.training.aggregate import LatticeSum
from hubbub.training.ranks import Ranks, has_launcher
from hubbub.training.rounds import server_step
from hubbub.training.run_folder.state import model_digest
from hubbub.training.simulation.functional import FlatModel
from ranks_of import Started, on_ranks
from reaper import alive
from small_runs import until

ROUNDS, CLIENTS = 6, 26


def people() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(5 + i % 3, 4, generator=generator), torch.arange(5 + i % 3) % 2) for i in range(CLIENTS)]


def population(ranks: Ranks, kind: str, *, lattice: bool) -> training.Population:
    if kind == "clients":
        return training.SimulatedPopulation(people(), F.cross_entropy, training.LocalTraining(), ranks=ranks, lattice=lattice)
    inputs, targets = (torch.cat(parts)[:CLIENTS] for parts in zip(*people(), strict=True))
    return training.ExamplePopulation(inputs, targets, F.cross_entropy, ranks=ranks, lattice=lattice, batch=4)


SAMPLED = [parts.PoissonSampling(0.4), parts.FixedSizeSampling(7, CLIENTS), parts.BallsInBinsSampling(3)]
PATTERNS = [parts.MinSeparation(3, 2), parts.FixedEpochs(2, 3)]
BANDED = toeplitz.square_root(ROUNDS, bands=3)
CORRELATED = [BANDED, BandedInverse(ROUNDS, (1.0, -0.5)), BufferedLinearToeplitz(ROUNDS, (0.9,), (0.3,))]
CASES: list[tuple[Strategy, parts.Participation]] = [
    *((Identity(ROUNDS), drawn) for drawn in (*SAMPLED, *PATTERNS)),
    *((strategy, drawn) for strategy in CORRELATED for drawn in PATTERNS),
    (BANDED, parts.CyclicPoissonSampling(0.8, 3)),
]


def bits(ranks: Ranks, kind: str, noise: str, adaptive: bool = False) -> list[Any]:  # sent to a process
    """The models and epsilons of every case, in all rounds, and in how many a round's own loss was known."""
    found: list[Any] = []
    for strategy, participation in CASES[:3] if adaptive else CASES:
        torch.manual_seed(ranks.rank)
        model = nn.Linear(4, 2)
        clip = AdaptiveClipping(0.5) if adaptive else 0.5
        mechanism = hubbub.Mechanism(strategy, participation, 1.0)
        plan = training.Plan(mechanism, clip, 1e-5, expected_cohort_size=6, seed=3, noise=noise)  # type: ignore[arg-type]
        for result in training.train(plan, population(ranks, kind, lattice=noise == "secure"), model):
            weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
            found.append((weights, result.epsilon, result.clients, result.statistics["train_loss"]))
    return found


@pytest.mark.parametrize("kind", ["clients", pytest.param("examples", marks=pytest.mark.slow)])
@pytest.mark.parametrize("adaptive", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_simulation_has_the_same_bits_on_one_two_and_three_ranks(size: int, kind: str, adaptive: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    alone = repr(bits(Ranks(), kind, "simulation", adaptive))
    for rank, found in enumerate(on_ranks(size, bits, kind, "simulation", adaptive)):
        assert repr(found) == alone, rank


def drawn(ranks: Ranks) -> list[Any]:
    mechanism = hubbub.Mechanism(Identity(ROUNDS), parts.PoissonSampling(0.4), 1.0)
    path = training.ReleasePath(Promise(ROUNDS, mechanism), 3, clients=CLIENTS, ranks=ranks)
    path.start()
    return path.draw(range(CLIENTS))


def test_each_rank_is_given_the_cohort_that_the_first_one_drew() -> None:
    one, other = on_ranks(2, drawn)
    assert one == other == [*one]


BIG = 70_000


def optimized(ranks: Ranks, folder: Path, stop: int) -> list[Any]:
    """A model of two segments with a stateful optimizer, in a folder, up to a round."""
    if ranks.size > 1:
        ranks = Ranks(torch.distributed.group.WORLD, shard_optimizer=True)
    torch.manual_seed(0)
    model, clients = nn.Linear(BIG // 2, 2), [(torch.randn(2, BIG // 2), torch.arange(2)) for _ in range(4)]
    everyone = parts.FixedEpochs(12, 1)
    mechanism = hubbub.Mechanism(toeplitz.square_root(12, bands=2), everyone, 1.0)
    server = training.ServerOptimizer("fedadam", learning_rate=0.1)
    plan = training.RunPlan(12, everyone, 4, mechanism=mechanism, clip_norm=0.5, seed=3, noise="simulation", server=server)
    population = training.SimulatedPopulation(clients, F.cross_entropy, training.LocalTraining(), ranks=ranks, lattice=False)
    until(training.train(plan, population, model, training.RunStore(folder)), stop)
    return [hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for p in model.parameters()]


@pytest.mark.slow
def test_an_optimizer_that_is_sharded_takes_the_same_steps_and_any_number_of_ranks_resumes(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone = optimized(Ranks(), tmp_path / "alone", 12)
    assert on_ranks(2, optimized, tmp_path / "two", 7) != [alone] * 2
    # From releases, of which no checkpoint is.
    assert on_ranks(3, optimized, tmp_path / "two", 12) == [alone] * 3
    checkpoints = [(tmp_path / name / "state" / "checkpoint-12.safetensors").read_bytes() for name in ("alone", "two")]
    assert checkpoints[0] == checkpoints[1]


def sums(ranks: Ranks, kind: str) -> list[Any]:
    torch.manual_seed(0)
    model, clients = nn.Linear(4, 2), population(ranks, kind, lattice=True)
    return [clients.collect(cohort, model, 0.5, 0).open(None).tolist() for cohort in (range(20), [3], [])]


def gradients(ranks: Ranks) -> list[float]:
    torch.manual_seed(0)
    inputs, targets = (torch.cat(parts) for parts in zip(*people(), strict=True))
    total = training.private_gradients(nn.Linear(4, 2), F.cross_entropy, inputs, targets, 0.3, ranks=ranks)
    return [*total.open(None).tolist(), total.statistics["train_loss"]]


def adapted(ranks: Ranks) -> list[int]:
    """A sum of gradients that passed through a frozen base, of which each rank holds its part alone."""
    torch.manual_seed(0)
    adapter, base = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 2)).requires_grad_(False)
    if ranks.size > 1:
        fully_shard(base, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (ranks.size,)))
        assert sum(p.to_local().numel() for p in base.parameters()) < 86 / 2

    def add(client: tuple[torch.Tensor, torch.Tensor], total: torch.Tensor) -> None:
        gradients = torch.autograd.grad(F.cross_entropy(base(adapter(client[0])), client[1]), adapter.parameters())
        total += Lattice(0.5).encode(torch.cat([gradient.flatten() for gradient in gradients]))[0]

    return ranks.summed([partial(add, client) for client in people()[:24]], torch.zeros(20, dtype=torch.int64))[0].tolist()


def test_secure_sums_are_the_same_on_any_number_of_ranks() -> None:
    torch.set_num_threads(1)
    for what, args in ((sums, ("clients",)), (sums, ("examples",)), (gradients, ()), (adapted, ())):
        alone = what(Ranks(), *args)
        assert on_ranks(3, what, *args) == [alone] * 3


DIM, LOOP = 200_000, 5
OWN = hubbub.Mechanism(toeplitz.square_root(LOOP, bands=3), parts.MinSeparation(3, 2), 2.0)
PROMISE = Promise(LOOP, OWN, settings={"clip_norm": 1.0})


def own_loop(ranks: Ranks, folder: Path, start: int, stop: int) -> list[Any]:
    """Rounds of a loop of one's own, in a folder; the releases, and how many numbers the rank remembers."""
    store = training.RunStore(folder)
    with store.locked() if ranks.leads else nullcontext():
        path = training.ReleasePath(PROMISE, DIM, clients=4, store=store, ranks=ranks)
        path.start()
        found: list[Any] = []
        for round_index in range(start, stop):
            assert path.next_round == round_index
            total = LatticeSum(torch.full((DIM,), round_index), Lattice(1.0), {})
            ticket = path.begin([f"{round_index} {i}" for i in range(4)], total, 1.0)
            release = total.open(path.row(ticket))
            path.commit(ticket, release)
            found.append(release.numpy())
        rows = path._noise.state_dict()["memory"] if path._noise else []
        return [np.stack(found), sum(len(row) for row in rows), ranks.lead(lambda: path.ledger.head)]


def of_keys(folder: Path, mechanism: hubbub.Mechanism, dim: int, promise: Any, rounds: int) -> list[torch.Tensor]:
    """The rows of noise of a run by its keys alone, in one process."""
    store = training.RunStore(folder)
    ledger = Ledger(promise, store.secret(), store.ledger_path)
    keys = [(epoch.first_row, store.noise_key(number)) for number, epoch in enumerate(ledger.history.epochs)]
    stream = NoiseStream(mechanism, dim, source=IncarnationSource(keys))
    return [stream.next_row() for _ in range(rounds)]


def test_a_path_gives_each_rank_its_part_and_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found = []
    for size, start, stop in ((2, 0, 2), (3, 2, 4), (1, 4, 5)):
        ended = on_ranks(size, own_loop, folder, start, stop)
        releases, kept, heads = zip(*ended, strict=True)
        assert all((one == releases[0]).all() for one in releases)
        assert len(set(heads)) == 1
        # Whole segments of 2^16 numbers, of which a rank has its part and no more.
        assert max(kept) <= 2 * 2**16 * math.ceil(math.ceil(DIM / 2**16) / size)
        found.append(releases[0])
    rows = of_keys(folder, OWN, DIM, PROMISE, LOOP)
    for t, release in enumerate(np.concatenate(found)):
        assert torch.equal(torch.from_numpy(release), Lattice(1.0).release(torch.full((DIM,), t), rows[t]))


def failing(ranks: Ranks, how: str) -> Any:  # noqa: C901 # one way after another
    """A round in which rank 1 does something that it should not."""
    wrong = ranks.rank == 1 or (how == "two stop in a sum" and ranks.rank == 2)
    if how == "another version":
        hubbub.training.ranks.__version__ = "0.2" if wrong else "0.1"
        return Ranks(torch.distributed.group.WORLD).size
    if how == "other threads":
        torch.set_num_threads(1 + wrong)
        return Ranks(torch.distributed.group.WORLD).size
    if how in ("another cohort", "another sum"):
        mechanism = hubbub.Mechanism(Identity(3), parts.MinSeparation(1, 3), 2.0)
        path = training.ReleasePath(Promise(3, mechanism, settings={"clip_norm": 1.0}), 2, clients=2, ranks=ranks)
        path.start()
        another = "b" if wrong and how == "another cohort" else "c"
        total = torch.full((2,), int(wrong and how == "another sum"))
        return path.begin(["a", another], LatticeSum(total, Lattice(1.0), {}), 1.0)
    if how == "a wrong part":
        return ranks.gathered(lambda: torch.zeros(3 if wrong else 2), [(0, 2), (2, 4), (4, 6)][: ranks.size], torch.float32)
    if how == "skips a sum":
        return [ranks.summed([chunk] * 3, torch.zeros(9).long()) for chunk in (torch.Tensor.neg, torch.Tensor.abs)[wrong:]]
    if how == "ends":
        ranks.exchange(lambda: os._exit(7) if wrong else None)
    if how == "other calls" and not wrong:
        ranks.exchange(lambda: "of another exchange")
    if how == "leads alone" and wrong:
        ranks.lead(lambda: None)
    if how in ("other calls", "leads alone", "ends in a sum", "loses a sum", "stops in a sum", "two stop in a sum"):
        hubbub.training.ranks._SOON = timedelta(seconds=2)
        reduced = torch.distributed.all_reduce

        def reduces(*given: Any, group: Any, async_op: bool) -> None:
            if how == "loses a sum":
                reduced(*given, group=group)
                raise RuntimeError("connection lost")
            # As long as the others wait, and longer than they then look for it.
            time.sleep(0 if how == "ends in a sum" else 9)
            os._exit(7)

        if wrong:
            torch.distributed.all_reduce = reduces
        return [ranks.summed([lambda total: total.add_(1)] * 3, torch.zeros(9, dtype=torch.int64)) for _ in range(2)]
    if how in ("a sharded model", "a sharded frozen layer"):
        whole = nn.Sequential(nn.Linear(4, 2).requires_grad_(how == "a sharded model"), nn.Linear(2, 2))
        fully_shard(whole[0], mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (ranks.size,)))
        return training.SimulatedPopulation(people(), F.cross_entropy, ranks=ranks).collect([1], whole, 0.5, 0)
    if how == "hangs":
        ranks.exchange(lambda: time.sleep(5) if wrong else None)
    if how == "an error":
        return ranks.exchange(lambda: raising(MemoryError("no room"))() if wrong else None)
    model = nn.Linear(4, 3 if wrong and how == "another model" else 2)
    if how == "another frozen layer":
        frozen = nn.Linear(4, 4).requires_grad_(False)
        nn.init.constant_(frozen.weight, float(ranks.rank))
        model = nn.Sequential(frozen, model)
    if how == "other examples of a loop":
        examples = torch.full((6, 4), float(ranks.rank)), torch.zeros(6).long()
        return training.private_gradients(model, F.cross_entropy, *examples, 0.3, ranks=ranks).open(None).tolist()
    clients = people()
    if wrong and how == "other data":
        # As many examples of each client.
        clients = [(-inputs, targets) for inputs, targets in clients]
    rate = 0.5 if wrong and how == "another plan" else 1.0
    coins = parts.PoissonSampling(0.9)
    plan = training.RunPlan(3, coins, 6, mechanism=hubbub.Mechanism(Identity(3), coins, rate), clip_norm=0.5)
    return list(training.train(plan, training.SimulatedPopulation(clients, F.cross_entropy, ranks=ranks), model))


FAULTS = [
    ("another version", "rank 1: has another hubbub or torch than rank 0 .*0.2"),
    ("another model", "rank 1: has another model"),
    ("other threads", "rank 1: has another processor, number of threads or library"),
    ("another cohort", "rank 1: has another round, cohort, clip norm or sum"),
    ("another sum", "rank 1: has another round, cohort, clip norm or sum"),
    ("other calls", "rank 1: is out of step: its exchange 4 is 'cohort, model, data or device' of .*summed, and .*'exchange'"),
    ("leads alone", "rank 1: is out of step: its exchange 4 is 'lead' of .*failing, and exchange 4 of rank 0 is 'cohort"),
    ("another plan", "rank 1: has another promise"),
    ("other data", "rank 1: has another data, loss, local training or seed"),
    ("a wrong part", r"rank 1: its part is \(3, torch.float32\)"),
    ("an error", "rank 1: no room"),
    ("another frozen layer", "rank 1: has another model"),
    ("other examples of a loop", "rank 1: has another cohort, model, data or device"),
    ("skips a sum", "rank 1: has another cohort, model, data or device"),
    ("ends", "rank 1: ended"),
    ("ends in a sum", "rank 1: ended"),
    ("hangs", "rank 1: did not answer within 2 seconds"),
    ("stops in a sum", "rank 1: did not answer within 2 seconds"),
    ("two stop in a sum", "ranks 1, 2 do not answer: which of them stopped, and which wait for it, cannot be known"),
    ("loses a sum", "data were lost, and all ranks answer .connection lost.: which one held them up cannot be known"),
]


# They wait for as long as "hangs" does, or begin as another case.
LATER = "another plan", "stops in a sum", "two stop in a sum"


@pytest.mark.parametrize(
    ("how", "words"),
    [pytest.param(*fault, id=fault[0], marks=pytest.mark.slow if fault[0] in LATER else ()) for fault in FAULTS],
)
def test_cra_13_a_rank_that_fails_is_named_on_all_others(how: str, words: str) -> None:
    found = on_ranks(3, failing, how, limit=2.0 if how == "hangs" or "stop" in how else 30.0)
    named = None if "rank 1: " not in words else 1
    assert isinstance(found[0], RankError), found
    assert found[0].rank == named
    assert re.match(words, str(found[0])), str(found[0])
    if how not in ("hangs", "two stop in a sum"):
        assert isinstance(found[2], RankError), found
        # One that waits is not blamed.
        assert found[2].rank in ((named,) if "in a sum" in how else (0, named))


def of_rank_0(ranks: Ranks) -> list[str]:
    mechanism = hubbub.Mechanism(Identity(3), parts.MinSeparation(1, 3), 2.0)
    path = training.ReleasePath(Promise(3, mechanism, settings={"clip_norm": 1.0}), 2, clients=2, ranks=ranks)
    said = []
    for name in ("ledger", "cohort_keys"):
        try:
            said.append(type(getattr(path, name)).__name__)
        except LedgerError as error:
            said.append(str(error).partition(";")[0])
    return said


def test_rank_0_alone_has_the_record_and_another_says_so() -> None:
    refused = ["rank 0 alone has the ledger", "rank 0 alone has the keys of cohorts"]
    assert on_ranks(2, of_rank_0) == [["Ledger", "CohortKeys"], refused]


@pytest.mark.parametrize("what", ["a sharded model", "a sharded frozen layer"])
def test_a_sharded_model_is_refused_on_every_rank(what: str) -> None:
    for found in on_ranks(2, failing, what):
        assert isinstance(found, ConfigError | RankError), found
        assert "has sharded parameters" in str(found)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_many_tasks_without_a_group_are_refused_since_each_would_be_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "4")
    with pytest.raises(ConfigError, match=f"{name} = 4: this program was started several times"):
        Ranks.launched()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert has_launcher()
    # A platform that numbers every process makes no group of one; torchrun does.
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not has_launcher()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert has_launcher()


BANDED = toeplitz.square_root(3, 2)


class Drifting(Identity):
    """A strategy whose matrix changes once it is told to."""

    changed = False

    def matrix(self) -> np.ndarray:
        return super().matrix() * (2.0 if self.changed else 1.0)


def differing(ranks: Ranks) -> list[str]:
    """What is said of a loop of one's own in which rank 1 differs, in one way after another."""
    leads, asked = ranks.leads, []
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks.size)
    hubbub.training.release.require_memory = lambda rows, width: asked.append(width)

    def path(noise_multiplier: float = 2.0, strategy: Strategy = BANDED, **changed: Any) -> training.ReleasePath:
        Drifting.changed = False
        mechanism = hubbub.Mechanism(strategy, parts.MinSeparation(2, 2), noise_multiplier)
        made = training.ReleasePath(Promise(3, mechanism, settings={}, **changed), 2, clients=2, ranks=ranks)
        made.start()
        Drifting.changed = not leads
        return made

    class OwnSum:
        lattice, statistics = Lattice(1.0), {}

        def digest(self, key: bytes) -> str:
            return f"{key!r} {leads}"

        def open(self, row: torch.Tensor | None) -> torch.Tensor:
            raise NotImplementedError

    total, said = LatticeSum(torch.ones(2, dtype=torch.int64), Lattice(1.0), {}), []
    for act in (
        lambda: path(2.0 if leads else 1e-3),
        lambda: path(simulation=not leads),
        lambda: path().begin(["a"], total if leads else replace(total, lattice=Lattice(1.0, 16)), 1.0),
        lambda: path().begin(["a"], OwnSum(), 1.0),
        lambda: path(strategy=Drifting(3)).begin(["a"], total, 1.0),
    ):
        with pytest.raises(RankError) as refused:
            act()
        said.append(str(refused.value))
    # The rank that has the noise of so few numbers counts all ranks of its machine.
    assert asked[0] == (2 * ranks.size if leads else 0)
    return said


def test_a_loop_in_which_a_rank_differs_in_its_promise_or_in_what_its_sum_means_is_refused() -> None:
    promise = "rank 1: has another promise, number of clients or seed than rank 0"
    other = "rank 1: has another round, cohort, clip norm or sum than rank 0"
    for *said, drifted in on_ranks(2, differing):
        assert said == [promise, promise, other, other]
        assert drifted.startswith("rank 1: strategy = Drifting: round 0 is not that of the promise any more")


def test_a_launcher_that_starts_train_again_begins_no_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("[privacy]\nepsilon = 4.0\n")
    for count, size, out in (
        ("TORCHELASTIC_RESTART_COUNT", 2, Path("run")),
        ("TORCHELASTIC_RESTART_COUNT", 1, None),
        ("SLURM_RESTART_COUNT", 1, None),
    ):
        monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
        monkeypatch.setenv(count, "1")
        monkeypatch.setattr(How, "shared", lambda *_, size=size: SimpleNamespace(size=size, leads=True))
        with pytest.raises(ConfigError, match="would begin another run; resume the first one"):
            begin(Path("run.toml"), [], out, How())
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


@pytest.mark.parametrize("changed", [{"secagg": {"scheme": "paillier"}}, {"training": {"engine": "flower"}}])
def test_several_ranks_are_refused_where_clients_train_by_themselves(changed: configs.Layer) -> None:
    pytest.importorskip("gmpy2")
    with pytest.raises(ConfigError, match="nproc = 2: several processes share a run begun with engine = 'process'"):
        build(configs.resolve({"privacy": {"epsilon": 8.0}}, changed), ranks=SimpleNamespace(size=2))  # type: ignore[arg-type]


LONG = 40


def plan_of(noise: str = "secure") -> training.RunPlan:
    everyone = parts.FixedEpochs(LONG, 1)
    mechanism = hubbub.Mechanism(toeplitz.square_root(LONG, bands=4), everyone, 3.0)
    return training.RunPlan(LONG, everyone, CLIENTS, mechanism=mechanism, clip_norm=0.5, noise=noise)  # type: ignore[arg-type]


class Known(training.SimulatedPopulation):
    """Clients whose shuffles are known to the judge."""

    def draw_under(self, _: bytes) -> None:
        super().draw_under(bytes(32))


def trained(ranks: Ranks, folder: Path) -> int:
    torch.manual_seed(0)
    clients = Known(people(), F.cross_entropy, training.LocalTraining(learning_rate=0.5), ranks=ranks)
    return len(list(training.train(plan_of(), clients, nn.Linear(4, 2), training.RunStore(folder))))


@pytest.mark.parametrize("kills", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_cra_1_cra_16_ranks_that_are_killed_lose_no_release_and_use_no_noise_twice(kills: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    draw = random.Random(kills)  # noqa: S311 # of a test
    done = 0
    while done < kills:
        folder = tmp_path / str(done)
        while done < kills:
            size = draw.choice((1, 2, 2, 3))
            started = Started(size, trained, folder)
            # From the start of the group to a few rounds later.
            time.sleep(draw.uniform(0.0, 0.4))
            victim = draw.randrange(size)
            started.kill(victim)
            ended = started.ended()
            killed = ended[victim] is None
            done += killed
            for rank, found in enumerate(ended):
                if rank != victim and killed:
                    assert isinstance(found, RankError | int), found
            if not killed:
                break
        judge(folder)
    assert done >= kills


def judge(folder: Path) -> None:
    """Finish the run on two ranks, and make each of its releases again from its keys and its clients, in this process."""
    assert {type(one) for one in on_ranks(2, trained, folder)} == {int}
    torch.manual_seed(0)
    plan, module = plan_of(), nn.Linear(4, 2)
    clients = Known(people(), F.cross_entropy, training.LocalTraining(learning_rate=0.5))
    clients.prepare(module, CLIENTS)
    model = FlatModel(module)
    optimizer, store = plan.server.build(model.vector), training.RunStore(folder)
    promise = plan.promise(clients=CLIENTS, parameters=model.dim, initial_model=model_digest(model.vector))
    ledger = Ledger(promise, store.secret(), store.ledger_path)
    rows = of_keys(folder, plan.mechanism, model.dim, promise, LONG)
    assert ledger.pending() is None
    assert len(ledger.history.rounds) == LONG
    aborted = 0
    for t in range(LONG):
        digest = ledger.history.rounds[t].release
        if digest is None:
            aborted += 1
            continue
        total = clients.collect(range(CLIENTS), module, 0.5, t)
        release = total.open(rows[t] * 0.5)
        assert torch.equal(release, store.load_release(t, digest, model.dim)), t
        server_step(plan, model, optimizer, 0.5, release, t)
    assert aborted <= len(ledger.history.epochs)


def hubbub_of(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(launcher or ("-m", "hubbub")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_run_that_two_processes_began_is_resumed_by_three_and_verified(tmp_path: Path) -> None:
    run, config = tmp_path / "run", Path(__file__).parent.parent / "examples" / "digits.toml"
    few = ("--set", "training.rounds=12", "--set", "training.evaluate_every=100")
    child = subprocess.Popen([sys.executable, "-m", "hubbub", "train", config, "-o", run, *few, "--nproc", "2"])
    while len((run / "metrics.jsonl").read_bytes().splitlines() if (run / "metrics.jsonl").exists() else ()) < 4:
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    done = hubbub_of("resume", run, "--nproc", "3")
    assert done.returncode == 0, done.stderr
    assert hubbub_of("verify", run).returncode == 0
    said = (run / "report.md").read_text()
    assert "the 3 processes that shared rounds" in said
    # Another launcher, and a full disk.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hubbub")
    done = hubbub_of("train", config, "-o", tmp_path / "again", *few, launcher=torchrun)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Run folder:") == 1
    full = hubbub_of("train", config, "-o", "/dev/full/run", *few, "--nproc", "2")
    assert full.returncode == 2
    assert full.stderr.count("hubbub: ") == 1, full.stderr


def listening(process: int) -> set[str]:
    """The addresses, as the kernel writes them, to which a process listens."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def require_end_with(starter: "subprocess.Popen[bytes]", ranks: list[int]) -> None:
    starter.kill()
    starter.wait()
    ends = time.monotonic() + 60
    while any(map(alive, ranks)):
        assert time.monotonic() < ends, "a rank outlives what started it"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("begun", [False, True])
def test_cra_13_ranks_of_one_command_listen_to_this_machine_alone_and_end_with_a_command_that_is_killed(
    begun: bool, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", Path(__file__).parent.parent / "examples" / "digits.toml"
    command = [sys.executable, "-m", "hubbub", "train", config, "-o", run, "--set", "training.rounds=400", "--nproc", "2"]
    starter = subprocess.Popen(command)
    children, rounds = Path(f"/proc/{starter.pid}/task/{starter.pid}/children"), run / "metrics.jsonl"
    while len(ranks := [int(child) for child in children.read_text().split()]) < 2 or (begun and not rounds.exists()):
        assert starter.poll() is None
        time.sleep(0.05)
    if begun:
        # 127.0.0.1, as such and as an address of IPv6.
        heard = set().union(*map(listening, (starter.pid, *ranks)))
        assert heard
        assert heard <= {"0100007F", "0000000000000000FFFF00000100007F"}
    require_end_with(starter, ranks)


WAITING = """
import os, pathlib, time
from hubbub.training import Ranks
Ranks.launched()
pathlib.Path(f"{os.environ['RANK']}.pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cra_13_ranks_of_a_program_end_with_torchrun(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(WAITING)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "loop.py"]
    starter = subprocess.Popen(command, cwd=tmp_path)
    while len(found := [int(text) for path in tmp_path.glob("*.pid") if (text := path.read_text())]) < 2:
        assert starter.poll() is None
        time.sleep(0.05)
    require_end_with(starter, found)


@pytest.mark.slow
def test_cra_13_a_second_ctrl_c_does_not_keep_a_command_of_several_ranks_from_ending(tmp_path: Path) -> None:
    run, config = tmp_path / "run", Path(__file__).parent.parent / "examples" / "digits.toml"
    command = [sys.executable, "-m", "hubbub", "train", config, "-o", run, "--set", "training.rounds=4000", "--nproc", "2"]
    starter = subprocess.Popen(command, start_new_session=True)
    while not (run / "metrics.jsonl").exists():
        assert starter.poll() is None
        time.sleep(0.05)
    try:
        for _ in range(2):
            starter.send_signal(signal.SIGINT)
            time.sleep(0.02)
        assert starter.wait(60) == 130
    finally:
        starter.kill()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epochs"), [("own_loop", 10), ("sharded_base", 4)])
def test_a_loop_of_ones_own_runs_under_torchrun(name: str, epochs: int) -> None:
    example = Path(__file__).parent.parent / "examples" / f"{name}.py"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two, one = hubbub_of(example, launcher=torchrun), hubbub_of(example, launcher=("-W", "default"))
    assert (two.returncode, one.returncode) == (0, 0), two.stderr
    assert two.stdout.count("epoch ") == epochs
    assert two.stdout.splitlines()[-1] == one.stdout.splitlines()[-1]
