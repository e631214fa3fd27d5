import itertools
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy import stats
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import accounting
from hubbub.accounting.ledger import Ledger
from hubbub.accounting.promise import Promise
from hubbub.errors import BudgetError, ConfigError, DataError, LedgerError, ParticipationError, RunFolderError
from hubbub.mechanism import Mechanism
from hubbub.noise import SecureSource
from hubbub.participation import (
    FixedEpochs,
    FixedSizeSampling,
    MinSeparation,
    Participation,
    PoissonSampling,
    SingleParticipation,
    every_round,
)
from hubbub.strategies import BinaryTree, Dense, Identity, toeplitz
from hubbub.testing import ContractError, check_population
from hubbub.training import (
    LatticeSum,
    LocalTraining,
    PlainSum,
    RunPlan,
    RunStore,
    ServerOptimizer,
    SimulatedPopulation,
    clip,
    train,
)
from hubbub.training.cohorts import draw, require_feasible
from hubbub.training.flat import FlatModel
from hubbub.training.state import RunState
from hubbub.utility import noising_matrix

CLIENTS = 12
FALSE_ALARM = 1e-6


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def population(seed: int = 0, dropout: bool = False) -> SimulatedPopulation:
    generator = torch.Generator().manual_seed(1)
    examples = [
        (torch.randn(5, 3, generator=generator), torch.randint(0, 2, (5,), generator=generator)) for _ in range(CLIENTS)
    ]
    return SimulatedPopulation(examples, F.cross_entropy, LocalTraining(batch_size=2, learning_rate=0.5, momentum=0.5), seed)


def plan_with(strategy: Identity, participation: Participation, **changes: object) -> RunPlan:
    plan = RunPlan(
        rounds=6,
        participation=participation,
        expected_cohort_size=4,
        mechanism=Mechanism(strategy, participation, 0.7),
        clip_norm=0.5,
        noise="simulation",
    )
    return replace(plan, **changes)


PLANS = {
    "independent, Poisson": plan_with(Identity(6), PoissonSampling(1 / 3)),
    "independent, fixed size": plan_with(Identity(6), FixedSizeSampling(4, CLIENTS)),
    "independent, everyone": plan_with(Identity(6), every_round(6), expected_cohort_size=CLIENTS),
    "banded, separated": plan_with(toeplitz.square_root(6, 3), MinSeparation(3, 2)),
    "tree, rotation": plan_with(BinaryTree(6), FixedEpochs(2, 3)),
    "momentum at the server": plan_with(Identity(6), every_round(6), server=ServerOptimizer("fedavgm", 0.5)),
    "Adam at the server": plan_with(Identity(6), every_round(6), server=ServerOptimizer("fedadam", 0.1)),
    "no privacy": RunPlan(6, PoissonSampling(0.5), 6.0, noise="simulation"),
}


# Clipping


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
)
def test_no_update_moves_the_sum_by_more_than_the_clip_norm(values: list[float], clip_norm: float) -> None:
    bounded, was_clipped = clip(torch.tensor(values), clip_norm)
    assert float(bounded.norm()) <= clip_norm
    assert torch.isfinite(bounded).all()
    if all(math.isfinite(v) for v in values) and not was_clipped:
        assert torch.equal(bounded, torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf, 1e30, 3e38, 0.0])
def test_one_hostile_number_moves_the_sum_by_at_most_the_clip_norm(hostile: float) -> None:
    update = torch.full((1000,), 0.01)
    update[17] = hostile
    assert float(clip(update, 1.0)[0].norm()) <= 1.0


def test_clipping_keeps_the_direction_and_the_norm() -> None:
    update = torch.tensor([3.0, 4.0])
    bounded, was_clipped = clip(update, 1.0)
    assert was_clipped
    assert 1 - 2**-19 < float(bounded.norm()) <= 1
    torch.testing.assert_close(bounded / bounded.norm(), torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-12, atol=0)
    assert not clip(update, 5.1)[1]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        clip(torch.ones(2), bad)


# Cohorts


def members(participation: Participation, rounds: int, size: float, key: bytes = bytes(32)) -> list[list[int]]:
    ledger = Ledger(Promise(rounds, Mechanism(Identity(rounds), participation, 1.0)), bytes(32))
    cohorts = []
    for t in range(rounds):
        cohort = draw(participation, t, range(CLIENTS), size, key=key, ledger=ledger)
        ledger.burn(ledger.begin(t, cohort, ""))
        cohorts.append([int(str(c)) for c in cohort])
    return cohorts


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.binary(min_size=32, max_size=32))
def test_separated_cohorts_keep_their_promise_for_as_long_as_is_feasible(b: int, rounds: int, key: bytes) -> None:
    pattern, size = MinSeparation(b, math.ceil(rounds / b)), CLIENTS // b
    require_feasible(pattern, rounds, CLIENTS, size)
    joined: dict[int, list[int]] = {}
    for t, cohort in enumerate(members(pattern, rounds, size, key)):
        assert len(cohort) == size
        for client in cohort:
            joined.setdefault(client, []).append(t)
    assert all(b_ - a >= b for rounds_ in joined.values() for a, b_ in itertools.pairwise(rounds_))
    assert all(len(rounds_) <= math.ceil(rounds / b) for rounds_ in joined.values())


def test_a_rotation_asks_every_client_once_an_epoch_in_the_same_place() -> None:
    cohorts = members(FixedEpochs(2, 4), 8, 3)
    assert sorted(itertools.chain.from_iterable(cohorts[:4])) == list(range(CLIENTS))
    assert cohorts[:4] == cohorts[4:]


def test_once_means_once() -> None:
    cohorts = members(SingleParticipation(), 4, 3)
    assert sorted(itertools.chain.from_iterable(cohorts)) == list(range(CLIENTS))


def test_cohorts_of_a_fixed_size_have_it_and_differ() -> None:
    cohorts = members(FixedSizeSampling(4, CLIENTS), 20, 4)
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 10


def test_poisson_coins_are_fair_and_independent() -> None:
    rounds, q = 4000, 0.3
    counts = torch.zeros(rounds, CLIENTS)
    ledger = Ledger(Promise(rounds, None), bytes(32))
    for t in range(rounds):
        for client in draw(PoissonSampling(q), t, range(CLIENTS), 1, key=bytes(32), ledger=ledger):
            counts[t, int(str(client))] = 1
    low, high = stats.binom.ppf([FALSE_ALARM / 24, 1 - FALSE_ALARM / 24], rounds, q)
    assert (counts.sum(dim=0) >= low).all()
    assert (counts.sum(dim=0) <= high).all()
    correlation = torch.corrcoef(counts.T)[torch.triu_indices(CLIENTS, CLIENTS, 1).unbind()].abs().max()
    assert float(correlation) * math.sqrt(rounds) < stats.norm.isf(FALSE_ALARM / 132)


@pytest.mark.parametrize(
    ("pattern", "rounds", "size", "message"),
    [
        (MinSeparation(4, 9), 20, 4, "needs 16 clients, there are 12"),
        (MinSeparation(3, 2), 20, 4, "need 7 participations"),
        (SingleParticipation(), 4, 4, "need 16 clients"),
        (FixedEpochs(2, 3), 7, 4, "the run has 7 rounds"),
        (FixedSizeSampling(4, 13), 6, 4, "population = 13"),
    ],
    ids=repr,
)
def test_what_the_clients_cannot_keep_is_refused_before_the_first_round(
    pattern: MinSeparation, rounds: int, size: int, message: str
) -> None:
    with pytest.raises(ParticipationError, match=message):
        require_feasible(pattern, rounds, CLIENTS, size)


# The loop


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_simulation_equals_the_uninterrupted_one_bit_for_bit(plan: RunPlan, stop: int, tmp_path: Path) -> None:
    whole = linear()
    expected = list(train(plan, population(), whole))
    first = train(plan, population(), linear(), RunStore(tmp_path))
    for _ in range(stop):
        next(first)
    first.close()
    resumed = linear()
    rest = list(train(plan, population(), resumed, RunStore(tmp_path)))
    assert [r.round_index for r in rest] == list(range(stop, 6))
    assert [r.epsilon for r in rest] == [r.epsilon for r in expected[stop:]]
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_checkpoint_of_a_long_run_is_enough(plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 2)
    whole = linear()
    list(train(plan, population(), whole))
    for stop in range(1, 7):
        model = linear()
        for result in train(plan, population(), model, RunStore(tmp_path)):
            if result.round_index + 1 == stop:
                break
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "plan", [p for name, p in PLANS.items() if name != "no privacy"], ids=[n for n in PLANS if n != "no privacy"]
)
def test_a_real_run_resumes_with_new_keys_and_the_noise_goes_on(plan: RunPlan, tmp_path: Path) -> None:
    plan = replace(plan, noise="secure")
    for stop in (2, 4, 6):
        model = linear()
        for result in train(plan, population(), model, RunStore(tmp_path)):
            if result.round_index + 1 == stop:
                break
    ledger = (tmp_path / "ledger.jsonl").read_text()
    assert ledger.count('"kind":"epoch"') == 3
    assert ledger.count('"kind":"commit"') == 6
    assert len(list((tmp_path / "state" / "keys").glob("epoch-*"))) == 3


@pytest.mark.parametrize("strategy", [Identity(6), toeplitz.square_root(6, 3), BinaryTree(6)], ids=lambda s: type(s).__name__)
def test_the_noise_of_a_resumed_real_run_is_one_stream_of_n_times_z(strategy: Identity, tmp_path: Path) -> None:
    # Clients without examples release the noise alone, rounded to the lattice.
    silent = SimulatedPopulation(
        [(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))] * 12, F.cross_entropy, LocalTraining()
    )
    plan = replace(plan_with(strategy, MinSeparation(3, 2)), noise="secure")
    first_rows, store = [], RunStore(tmp_path)
    for stop in (2, 3, 5):
        for result in train(plan, silent, linear(), store):
            if result.round_index + 1 == stop:
                break
    for line in (tmp_path / "ledger.jsonl").read_text().splitlines():
        body = json.loads(line)["body"]
        if body["kind"] == "epoch":
            first_rows.append(body["first_row"])
    keys = [store.noise_key(epoch) for epoch in range(3)]
    assert len(set(keys)) == 3
    rows = strategy.matrix().shape[0]
    epoch_of = [max(e for e in range(3) if first_rows[e] <= row) for row in range(rows)]
    z = torch.stack([SecureSource(keys[epoch_of[row]]).row(row, 8) for row in range(rows)])
    expected = plan.mechanism.stddev * plan.clip_norm * torch.from_numpy(noising_matrix(strategy)) @ z
    for t in range(5):
        released = load_file(tmp_path / "state" / "releases" / f"{t}.safetensors")["release"]
        # To the nearest of the whole multiples of 2^-25.
        torch.testing.assert_close(released, expected[t], rtol=0, atol=2**-26 + 1e-12)


def test_a_round_that_was_begun_and_not_released_is_burned_and_charged(tmp_path: Path) -> None:
    plan = replace(PLANS["banded, separated"], noise="secure")

    class DiesWhenHidden(LatticeSum):
        def open(self, row: torch.Tensor | None) -> torch.Tensor:
            raise KeyboardInterrupt

    class Dies(SimulatedPopulation):
        def collect(self, cohort, model, clip_norm, round_index):  # stands for a crash
            total = super().collect(cohort, model, clip_norm, round_index)
            return DiesWhenHidden(total.total, total.lattice, {}) if round_index == 2 else total

    mortal = Dies(population()._examples, F.cross_entropy, LocalTraining())
    with pytest.raises(KeyboardInterrupt):
        list(train(plan, mortal, linear(), RunStore(tmp_path)))
    results = list(train(plan, population(), linear(), RunStore(tmp_path)))
    assert [r.round_index for r in results] == [3, 4, 5]
    assert results[0].epsilon == plan.promise().after(4, plan.delta).epsilon
    assert (tmp_path / "ledger.jsonl").read_text().count('"kind":"burn"') == 1


def test_a_simulation_is_a_function_of_its_seed() -> None:
    models = [linear() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        list(train(replace(PLANS["independent, Poisson"], seed=seed), population(), model))
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)


def test_the_order_of_clients_changes_nothing_but_rounding() -> None:
    clients, model = population(), linear()
    forward = clients.collect([0, 3, 5, 7], model, 0.5, 0).open(None)
    backward = clients.collect([7, 5, 3, 0], model, 0.5, 0).open(None)
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-14)


def test_a_client_s_update_does_not_depend_on_its_neighbours() -> None:
    clients, model = population(), linear()
    alone = clients.collect([3], model, None, 2).open(None)
    beside = clients.collect([5, 3], model, None, 2).open(None) - clients.collect([5], model, None, 2).open(None)
    torch.testing.assert_close(alone, beside, rtol=1e-12, atol=1e-14)


def test_the_lean_loop_is_plain_sgd() -> None:
    clients, model = population(), linear()
    update = clients.collect([4], model, None, 1).open(None)
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    x, y = clients._examples[4]
    # The order of batches is the population's own business: take the one of three steps that it drew.
    best = math.inf
    for order in itertools.permutations(range(5)):
        trial = linear()
        optimizer = torch.optim.SGD(trial.parameters(), lr=0.5, momentum=0.5)
        for batch in torch.tensor(order).split(2):
            optimizer.zero_grad()
            F.cross_entropy(trial(x[batch]), y[batch]).backward()
            optimizer.step()
        moved = torch.cat([p.detach().reshape(-1) for p in trial.parameters()]) - start
        best = min(best, float((moved - update).abs().max()))
    assert best < 1e-6


def test_the_released_sum_has_noise_of_the_stated_deviation() -> None:
    # Clients whose update is zero release the noise alone.
    dim, rounds = 5000, 8
    model = nn.Linear(dim - 1, 1, bias=True)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    still = SimulatedPopulation([(torch.zeros(1, dim - 1), torch.zeros(1, 1))] * 4, F.mse_loss, LocalTraining())
    mechanism = Mechanism(Identity(rounds), every_round(rounds), 1.7)
    plan = RunPlan(rounds, mechanism.participation, 4.0, mechanism, clip_norm=0.3, noise="secure")
    before, moved = torch.zeros(dim), []
    for _ in train(plan, still, model):
        after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        moved.append((after - before).double())
        before = after.clone()
    scaled = torch.stack(moved) * 4 / (1.7 * 0.3)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], scaled.numel())
    # The clients learn nothing: their bias gradient is that of the noise alone, one coordinate of 5,000, clipped to 0.3.
    assert low * 0.99 < float(scaled.square().sum()) < high * 1.01


def test_an_empty_cohort_is_a_round_like_any_other() -> None:
    plan = RunPlan(
        3, PoissonSampling(1e-9), 1.0, Mechanism(Identity(3), PoissonSampling(1e-9), 1.0), clip_norm=1.0, noise="simulation"
    )
    results = list(train(plan, population(), linear()))
    assert [r.clients for r in results] == [0, 0, 0]
    assert results[-1].epsilon > 0 or accounting.guarantee(plan.mechanism, plan.delta).epsilon == 0


def test_the_denominator_is_the_expected_cohort_and_not_the_actual_one() -> None:
    class Ones:
        clients: Sequence[int] = range(CLIENTS)

        def collect(self, cohort, model, clip_norm, round_index):  # another implementation
            return PlainSum(torch.full((8,), float(len(cohort)), dtype=torch.float64), {})

    model = linear()
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()
    plan = RunPlan(1, PoissonSampling(0.5), 6.0, noise="simulation")
    (result,) = train(plan, Ones(), model)
    after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(after - before, torch.full((8,), result.clients / 6.0))


# Hostile clients, models and folders


class Hostile(SimulatedPopulation):
    """Clients whose training ends where they please."""

    ENDS = (math.nan, math.inf, -math.inf, 1e30, 0.0)

    def _train(self, worker: FlatModel, start: torch.Tensor, client: int, round_index: int) -> float:
        loss = super()._train(worker, start, client, round_index)
        if client < len(self.ENDS):
            worker.vector.fill_(self.ENDS[client])
        return loss


def hostile() -> Hostile:
    return Hostile(population()._examples, F.cross_entropy, LocalTraining())


def test_the_population_keeps_its_contract_with_hostile_clients() -> None:
    check_population(hostile(), linear(), clip_norm=0.25)


def test_a_population_that_forgets_to_clip_is_caught() -> None:
    class Forgets(Hostile):
        def collect(self, cohort, model, clip_norm, round_index):  # a deliberately broken twin
            return super().collect(cohort, model, None, round_index)

    with pytest.raises(ContractError, match="moves the sum"):
        check_population(Forgets(hostile()._examples, F.cross_entropy, LocalTraining()), linear(), clip_norm=0.25)


def test_a_run_with_hostile_clients_ends_with_a_finite_model() -> None:
    model = linear()
    list(train(PLANS["independent, everyone"], hostile(), model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))], ids=["alone", "inside"]
)
def test_running_statistics_are_refused_with_advice(layer: nn.Module) -> None:
    with pytest.raises(ConfigError, match="GroupNorm"):
        FlatModel(layer)


def test_a_buffer_is_refused_and_a_constant_is_not() -> None:
    model = linear()
    model.register_buffer("scale", torch.ones(1), persistent=False)
    FlatModel(model)
    model.register_buffer("mean", torch.ones(1))
    with pytest.raises(ConfigError, match="'mean'"):
        FlatModel(model)


def test_shared_and_frozen_parameters_count_as_they_should() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    flat = FlatModel(nn.Sequential(first, second))
    assert flat.dim == 9 + 3
    flat.vector.fill_(2.0)
    assert (first.weight == 2).all()
    assert not (second.bias == 2).all()


def test_a_scalar_parameter_is_clipped_like_any_other() -> None:
    model = nn.Linear(1, 1)
    model.temperature = nn.Parameter(torch.tensor(1.0))
    assert FlatModel(model).dim == 3


def test_a_model_without_parameters_and_clients_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        FlatModel(nn.Flatten())
    with pytest.raises(DataError, match="5 inputs and 4 targets"):
        SimulatedPopulation([(torch.zeros(5, 1), torch.zeros(4))], F.mse_loss, LocalTraining())
    with pytest.raises(DataError, match="there is none"):
        SimulatedPopulation([], F.mse_loss, LocalTraining())


def interrupted(tmp_path: Path) -> RunPlan:
    plan = replace(PLANS["banded, separated"], noise="secure")
    run = train(plan, population(), linear(), RunStore(tmp_path))
    for _ in range(3):
        next(run)
    run.close()
    return plan


@pytest.mark.parametrize("damage", ["release", "missing release", "key", "missing key", "short key"])
def test_a_damaged_folder_is_refused_and_named(tmp_path: Path, damage: str) -> None:
    plan, state = interrupted(tmp_path), tmp_path / "state"
    broken = state / {"release": "releases/1.safetensors", "missing release": "releases/1.safetensors"}.get(damage, "keys/run")
    match damage:
        case "release":
            broken.write_bytes(b"x" + broken.read_bytes()[1:])
        case "short key":
            broken.write_bytes(b"short")
        case "key":
            broken = state / "keys/epoch-0"
            broken.unlink()
        case _:
            broken.unlink()
    with pytest.raises(RunFolderError, match=str(broken)):
        next(train(plan, population(), linear(), RunStore(tmp_path)))


def test_a_lost_checkpoint_is_made_again_from_the_releases_and_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 2)
    plan = interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "copy" / "state" / "checkpoint.json").unlink()
    whole, again = (RunState.start(plan, linear(), RunStore(tmp_path / name), clients=CLIENTS) for name in ("run", "copy"))
    assert torch.equal(whole.model.vector, again.model.vector)
    for ours, theirs in zip(whole.path.noise.state_dict()["memory"], again.path.noise.state_dict()["memory"], strict=True):
        assert torch.equal(ours, theirs)
    assert whole.path.noise.drawn == again.path.noise.drawn == 3


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.training.state.CHECKPOINT_EVERY", 2)
    plan = interrupted(tmp_path)
    (file,) = (tmp_path / "state").glob("checkpoint-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(RunFolderError, match="SHA-256"):
        next(train(plan, population(), linear(), RunStore(tmp_path)))


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    plan = interrupted(tmp_path)
    with pytest.raises(LedgerError, match="another promise"):
        next(
            train(
                replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=0.1)),
                population(),
                linear(),
                RunStore(tmp_path),
            )
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": None}, "clip_norm"),
        ({"participation": every_round(6)}, "the mechanism promises"),
        ({"rounds": 7}, "noise for 6 rounds"),
        ({"expected_cohort_size": 0}, "expected_cohort_size"),
        ({"delta": 1.5}, "delta"),
        ({"noise": "none"}, "noise"),
    ],
    ids=str,
)
def test_a_plan_that_contradicts_itself_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLANS["banded, separated"], **changes)


def test_nothing_that_one_client_leaves_in_the_module_reaches_another() -> None:
    class Remembers(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("mean", torch.zeros(3), persistent=False)
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.mean.lerp_(x.mean(dim=0), 0.5)
                self.frozen.add_(x.mean(dim=0))
            return super().forward((x - self.mean) * self.frozen)

    torch.manual_seed(0)
    clients, model = population(), Remembers()
    alone = clients.collect([3], model, None, 2).open(None)
    beside = clients.collect([5, 3], model, None, 2).open(None) - clients.collect([5], model, None, 2).open(None)
    torch.testing.assert_close(alone, beside, rtol=1e-12, atol=1e-14)


def test_a_population_trains_the_model_that_it_is_given() -> None:
    clients = population()
    torch.manual_seed(0)
    relu, tanh = (nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2)) for act in (nn.ReLU(), nn.Tanh()))
    tanh.load_state_dict(relu.state_dict())
    clients.collect([1], relu, None, 0)
    torch.testing.assert_close(
        clients.collect([1], tanh, None, 0).open(None), population().collect([1], tanh, None, 0).open(None)
    )


def test_a_model_whose_parameters_were_replaced_is_refused_in_place_of_learning_nothing() -> None:
    model = linear()
    run = train(PLANS["independent, everyone"], population(), model)
    next(run)
    model.to(torch.float64).to(torch.float32)
    with pytest.raises(ConfigError, match="were replaced"):
        next(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighboring_relation": "add-or-remove-one"}, "add-or-remove-one"),
        ({"accountant": "tihgt"}, "did you mean 'tight'"),
        ({"mechanism": Mechanism(Identity(6), MinSeparation(3, 2), 0.05), "accountant": "pld"}, "outgrows memory"),
    ],
    ids=["relation", "accountant", "second opinion"],
)
def test_what_accounting_will_not_state_is_refused_before_the_first_release(changes: dict, message: str) -> None:
    with pytest.raises((ValueError, BudgetError), match=message):
        replace(PLANS["banded, separated"], **changes)


def test_a_run_resumes_under_its_own_matrix_only(tmp_path: Path) -> None:
    # The same norms of columns and the same stated sensitivity to one participation, another matrix.
    own, other = Dense([[1.0, 0.0], [0.0, 1.0]]), Dense([[0.6, 0.0], [0.8, 1.0]])
    plans = [
        RunPlan(2, SingleParticipation(), 4.0, Mechanism(strategy, SingleParticipation(), 1.0), 1.0)
        for strategy in (own, other)
    ]
    assert plans[0].mechanism.l2_sensitivity == plans[1].mechanism.l2_sensitivity
    run = train(plans[0], population(), linear(), RunStore(tmp_path))
    next(run)
    run.close()
    with pytest.raises(LedgerError, match=r"strategy\.C\.sha256"):
        next(train(plans[1], population(), linear(), RunStore(tmp_path)))


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    first = train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path))
    next(first)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} is at work"):
        next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))
    first.close()
    next(train(PLANS["banded, separated"], population(), linear(), RunStore(tmp_path)))


def test_a_long_hostile_update_stays_within_the_clip_norm() -> None:
    update = torch.full((1_000_000,), 1e-8)
    update[:16] = 1.0
    assert float(clip(update, 1.0)[0].norm()) <= 1.0
