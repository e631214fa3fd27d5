"""One client, whatever it sends, moves what a run releases by no more than the sensitivity: in whole numbers, in replayed runs.

Each pair of neighbours shares models, keys and all other clients. One of the two has a client that sends nothing, which counts
as zero, or another one; the rest is the real path.
"""

import itertools
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy

import bad_replies
from bad_replies import BOUNDED, LIES, NO_BIT, NOTHING
from encrypted_runs import encrypted, terms
from encrypted_runs import plan as encrypted_plan
from flower_arms import averaging, record, training_app
from hubbub import AdaptiveClipping, Mechanism, MinSeparation, PoissonSampling
from hubbub.audit.neighbours import Influence, influence
from hubbub.flower import DPFedAvgFixed, GridPopulation, LocalGrid, MatrixFactorizationDP
from hubbub.flower.messages import NORM_BIT
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.participation import every_round
from hubbub.mechanism.sensitivity import of_sets
from hubbub.mechanism.strategies import BandedInverse, BinaryTree, BufferedLinearToeplitz, Identity, Strategy, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, RunPlan, RunStore, SimulatedPopulation, release, train
from hubbub.training.run_folder import store
from replays import CLIENTS, DIM, VECTORS, Replayed, Transcript, crafted, fixed, simulated, single_examples
from small_runs import linear

ROUNDS, CLIP, TARGET = 8, 0.7, 5
PATTERN = MinSeparation(3, 3)
STRATEGIES: dict[str, Strategy] = {
    "identity": Identity(ROUNDS),
    "banded": toeplitz.square_root(ROUNDS, 3),
    "BLT": BufferedLinearToeplitz(ROUNDS, (0.5, 0.95), (0.3, 0.15)),
    "tree": BinaryTree(ROUNDS),
    "banded inverse": BandedInverse(ROUNDS, (1.0, -0.5, -0.1)),
}
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


def pairs(short: int, full: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pairs", [short, pytest.param(full, marks=pytest.mark.slow)])


pytestmark = pytest.mark.usefixtures("quiet")


def plan(strategy: Strategy, clipping: float | AdaptiveClipping = CLIP, **changes: Any) -> RunPlan:
    made = RunPlan(ROUNDS, PATTERN, 4, Mechanism(strategy, PATTERN, 0.8), clip_norm=clipping)
    return replace(made, **changes)


def noted(planned: RunPlan, population: Any) -> Transcript:
    """A run in which the target sends nothing; by a seed, so that it is the same each time."""
    population.inject(TARGET, lambda model, round_index: None)
    transcript = Transcript(population)
    list(train(replace(planned, noise="simulation"), transcript, linear()))
    return transcript


def require(found: Influence) -> None:
    assert found.holds, found.sentence()


@pytest.mark.parametrize("name", VECTORS)
@every_strategy
def test_cli_1_no_client_in_this_process_moves_a_run_by_more_than_the_sensitivity(strategy: Strategy, name: str) -> None:
    planned = plan(strategy)
    transcript, neighbour = noted(planned, simulated()), simulated()
    neighbour.inject(TARGET, fixed(name, 1, CLIP))
    require(transcript.influence_of(neighbour, TARGET, planned.mechanism))


@pairs(60, 1000)
@every_strategy
def test_no_hostile_client_in_this_process_does(strategy: Strategy, pairs: int) -> None:
    planned = plan(strategy)
    transcript, neighbour = noted(planned, simulated()), simulated()
    nearest = Fraction(0)
    for seed in range(pairs):
        neighbour.inject(TARGET, crafted(seed, CLIP))
        found = transcript.influence_of(neighbour, TARGET, planned.mechanism)
        require(found)
        nearest = max(nearest, found.squared)
    # Some come as near as the rounds allow that the target took part in, so that a bound that is missed would be seen.
    rounds = transcript.joined(TARGET)
    assert len(rounds) >= 2
    possible = of_sets(strategy.matrix(), [tuple(rounds)]).value
    assert float(nearest) ** 0.5 > 0.99 * possible


@pairs(25, 800)
def test_a_client_that_is_replaced_moves_a_run_by_twice_as_much_at_most(pairs: int) -> None:
    planned = plan(STRATEGIES["banded"])
    one, other = noted(planned, simulated()), simulated()
    furthest = Fraction(0)
    for seed in range(pairs):
        one.population.inject(TARGET, crafted(seed, CLIP))
        for round_index in one.joined(TARGET):
            total = one.again(one.population, round_index)
            one.rounds[round_index] = replace(one.rounds[round_index], steps=one.steps_of(total))
        other.inject(TARGET, crafted(seed + 10**6, CLIP))
        found = one.influence_of(other, TARGET, planned.mechanism, "replace-one")
        require(found)
        furthest = max(furthest, found.largest)
    # More than one clip norm apart: one bound would not do.
    assert furthest > 1


@pairs(60, 1000)
def test_no_hostile_example_does(pairs: int) -> None:
    planned = plan(STRATEGIES["banded"])
    transcript, neighbour = noted(planned, single_examples()), single_examples()
    for seed in range(pairs):
        neighbour.inject(TARGET, crafted(seed, CLIP))
        require(transcript.influence_of(neighbour, TARGET, planned.mechanism))


@pairs(60, 1000)
@pytest.mark.parametrize("population", [simulated, single_examples])
def test_ada_4_no_hostile_client_moves_update_and_count_together_by_more(population: Callable[[], Any], pairs: int) -> None:
    planned = plan(Identity(ROUNDS), AdaptiveClipping(CLIP, clip_norm_learning_rate=0.5))
    transcript, neighbour = noted(planned, population()), population()
    assert len({round_.clip_norm for round_ in transcript.rounds.values()}) == ROUNDS
    for seed in range(pairs):
        neighbour.inject(TARGET, crafted(seed, CLIP))
        require(transcript.influence_of(neighbour, TARGET, planned.mechanism))


@pairs(40, 400)
def test_no_hostile_client_that_encrypts_by_our_code_does(pairs: int) -> None:
    """Nobody can clip what is encrypted: a client's own code does, whatever its data makes of the model."""
    how = terms(holders=1, threshold=1)
    planned = encrypted_plan(Identity(6), how)

    def opened(total: Any) -> Any:
        steps = total.open(torch.zeros(DIM, dtype=torch.float64)) / total.lattice.step
        assert torch.equal(steps, steps.round())
        return steps.to(torch.int64).numpy()

    def made() -> Any:
        population = encrypted(planned, how)
        for client in range(CLIENTS):
            population.inject(client, simulated()._adversaries[client])
        return population

    population, neighbour = made(), made()
    population.inject(TARGET, fixed("zero", 0, CLIP))
    transcript, model = Transcript(population, opened), linear()
    transcript.collect([1, TARGET, 7], model, 0.5, 0)
    for seed in range(pairs):
        neighbour.inject(TARGET, crafted(seed, 0.5))
        # A round is opened once: each pair has holders of its own.
        neighbour._holders = encrypted(planned, how)._holders
        require(transcript.influence_of(neighbour, TARGET, planned.mechanism))


# The same keys, the whole run.


def kinds(folder: Path) -> list[tuple[Any, ...]]:
    """Of the records: their kinds, rounds, epochs, scales and clients, and the names of all that they hold."""
    records = read_chain(folder / "ledger.jsonl").records
    return [(r["kind"], r.get("round"), r.get("epoch"), r.get("clip_norm"), r.get("clients"), sorted(r)) for r in records]


def require_same_records(
    planned: RunPlan, one: Transcript, other: Replayed, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both populations are trained with the same keys."""
    for name, population in (("one", one), ("other", other)):
        numbers = itertools.count(1)
        for module in (release, store):
            monkeypatch.setattr(module, "fresh_key", lambda numbers=numbers: next(numbers).to_bytes(32, "big"))
        list(train(planned, population, linear(), RunStore(folder / name)))
    assert kinds(folder / "one") == kinds(folder / "other")


@pytest.mark.parametrize("name", ["1e30", "NaN in part", "zero", "twice", "no answer"])
@every_strategy
def test_neighbours_have_the_same_records_and_releases_that_differ_by_the_client_alone(
    strategy: Strategy, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control flow, too: the same rounds, charged and released in the same order, with the same noise."""
    planned, transcript, neighbour = plan(strategy), Transcript(simulated()), simulated()
    if name == "no answer":
        neighbour.inject(TARGET, lambda model, round_index: None)
    else:
        neighbour.inject(TARGET, fixed(name, 1, CLIP))
    other = Replayed(neighbour, transcript)
    require_same_records(planned, transcript, other, tmp_path, monkeypatch)
    assert other.seen == [transcript.rounds[t].cohort for t in range(ROUNDS)]
    stores = [RunStore(tmp_path / folder) for folder in ("one", "other")]
    history = [read_chain(store.ledger_path).records for store in stores]
    digests = [[r["release"] for r in records if r["kind"] == "commit"] for records in history]
    for t in range(ROUNDS):
        one, another = (stores[i].load_release(t, digests[i][t], DIM) for i in (0, 1))
        moved = (transcript.again(neighbour, t).total - torch.from_numpy(transcript.rounds[t].steps)).numpy()
        lattice = Lattice(CLIP)
        assert lattice.holds(one)
        assert lattice.holds(another)
        assert ((another / lattice.step) - (one / lattice.step)).tolist() == moved.tolist()
        assert any(moved) == (TARGET in transcript.rounds[t].cohort)


def test_a_client_more_or_less_changes_no_others_coins_and_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added or removed, under random cohorts: of which no list is kept, so that the records have the same form."""
    participation = PoissonSampling(0.4)
    planned = plan(Identity(ROUNDS), participation=participation, mechanism=Mechanism(Identity(ROUNDS), participation, 0.8))
    transcript = Transcript(simulated())
    last = CLIENTS - 1
    transcript.population.inject(last, fixed("1e30", 1, CLIP))
    other = Replayed(simulated(CLIENTS - 1), transcript)
    require_same_records(planned, transcript, other, tmp_path, monkeypatch)
    assert other.seen == [tuple(c for c in transcript.rounds[t].cohort if c != last) for t in range(ROUNDS)]
    assert transcript.joined(last)
    require(transcript.influence_of(other.population, last, planned.mechanism, "add-or-remove-one"))


@pytest.mark.parametrize("kind", [SimulatedPopulation, ExamplePopulation])
def test_rng_6_shuffles_and_dropout_are_secret_in_a_release(kind: Any) -> None:
    """Without one unit those after it in the list draw other numbers: by a known seed their updates would be others, too."""
    data = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.int64)
    given = ([*zip(*data, strict=True)],) if kind is SimulatedPopulation else (data[0][:, 0], data[1][:, 0])
    population, model = kind(*given, cross_entropy), nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def total() -> torch.Tensor:
        return population.collect(range(6), model, CLIP, 0).open(None)

    for noise, kept in (("simulation", True), ("secure", False)):
        before, everyone = total(), every_round(1)
        mechanism = Mechanism(Identity(1), everyone, 1.0)
        trained = deepcopy(model)
        plan = RunPlan(1, everyone, 6, mechanism, CLIP, privacy_unit=population.privacy_unit, noise=noise)
        list(train(plan, population, trained))
        assert torch.equal(total(), before) == kept


def answering() -> ClientApp:
    return training_app(lambda model, index: {name: v + v.dtype.type(0.05 * (index - 3)) for name, v in model.items()})


def separated(strategy: Strategy) -> MatrixFactorizationDP:
    mechanism = Mechanism(strategy, PATTERN, 1.0)
    settings = {"clip_norm": CLIP, "num_sampled_clients": 4, "keys_enforced": True, "simulation_seed": 3}
    return MatrixFactorizationDP(averaging(4), mechanism=mechanism, **settings)


def fixed_clipping(**more: Any) -> DPFedAvgFixed:
    return bad_replies.fixed(4, clip_norm=CLIP, **more)


FAULTS = {**NOTHING, **BOUNDED, **LIES, **NO_BIT}


def adapted(reply: Message, draw: random.Random) -> Message:
    """Against the model that the client was sent: huge, aligned, at the clip norm, or of any size."""
    size = draw.choice([1e9, 1e30, CLIP, CLIP * 1.0001, 10 ** draw.uniform(-30, 30)])
    signs = random.Random(draw.choice([1, 2]))  # noqa: S311 # the same direction in every round
    wide = {name: array.numpy().astype(np.float64) for name, array in reply.content["arrays"].items()}
    arrays = {name: Array(np.asarray(array + signs.gauss(0, 1) * size)) for name, array in wide.items()}
    metrics = MetricRecord({"num-examples": draw.choice([1, 10**12, -8, 0]), NORM_BIT: draw.choice([0, 1, 2**62, -(2**62)])})
    reply.content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return reply


@pairs(40, 500)
@pytest.mark.parametrize(
    "make",
    [
        *(lambda s=s: separated(s) for s in STRATEGIES.values()),
        fixed_clipping,
        lambda: bad_replies.adaptive(4, initial_clip_norm=CLIP),
    ],
    ids=[*STRATEGIES, "fixed", "adaptive"],
)
def test_cli_1_no_hostile_reply_moves_a_federation_by_more(make: Callable[[], PrivateStrategy], pairs: int) -> None:
    """One run, in which the target is silent; in each round its reply is spoilt in many ways, and the sum formed again.

    In a pair the target has one fault in all of its rounds, and the sums of the same round without it.
    """
    strategy, grid = make(), LocalGrid(answering(), CLIENTS)
    target = grid.get_node_ids()[TARGET]
    moved: list[dict[int, Any]] = [{} for _ in range(pairs)]
    norms: dict[int, float] = {}
    model = record(bad_replies.MODEL)
    for round_index in range(ROUNDS):
        messages = list(strategy.configure_train(round_index + 1, model, ConfigRecord(), grid))
        replies = grid.send_and_receive(messages)
        under_way = strategy._run._under_way
        summing, asked, sent = under_way.summing, under_way.messages, under_way.arrays
        norms[round_index] = summing.lattice.clip_norm
        others = [reply for reply in replies if reply.metadata.src_node_id != target]
        own = [reply for reply in replies if reply.metadata.src_node_id == target]
        silent = summing.of(asked, others, sent)[0].total
        for seed in range(pairs) if own else ():
            draw = random.Random(seed)  # noqa: S311 # of a test
            names = list(FAULTS)
            fault = FAULTS[names[seed % len(names)]] if seed % 3 else adapted
            copied = {"arrays": ArrayRecord(dict(own[0].content["arrays"])), "metrics": MetricRecord({"num-examples": 1})}
            arrived = fault(Message(RecordDict(copied), metadata=own[0].metadata), draw)
            hostile = arrived if isinstance(arrived, list) else [] if arrived is None else [arrived]
            total, _, _ = summing.of(asked, [*others, *hostile] if seed % 2 else [*hostile, *others], sent)
            moved[seed][round_index] = (total.total - silent).numpy()
        made, told = strategy.aggregate_train(round_index + 1, others)
        assert told["released"] == 1
        model = made or model
    furthest = Fraction(0)
    for differences in moved:
        found = influence(strategy.mechanism, differences, norms)
        require(found)
        furthest = max(furthest, found.largest)
    # As far as one client may go in one round, nearly.
    assert furthest > Fraction(99, 100)


@pytest.mark.slow
def test_neighbours_of_a_federation_have_the_same_records_whatever_one_of_them_sends(tmp_path: Path) -> None:
    """Charged and released in the same order, with the same cohorts: a client decides over nothing but its update."""

    def records(name: str, fault: bad_replies.Fault) -> list[tuple[Any, ...]]:
        strategy, grid, draw = fixed_clipping(state=tmp_path / name), LocalGrid(answering(), 4), random.Random(1)  # noqa: S311
        target = grid.get_node_ids()[1]
        grid.reply_filter = lambda reply: fault(reply, draw) if reply.metadata.src_node_id == target else reply
        model = record(bad_replies.MODEL)
        for server_round in (1, 2):
            messages = strategy.configure_train(server_round, model, ConfigRecord(), grid)
            model = strategy.aggregate_train(server_round, grid.send_and_receive(messages))[0] or model
        return kinds(tmp_path / name)

    silent = records("silent", lambda reply, draw: None)
    assert [row[0] for row in silent] == ["promise", "epoch", "begin", "commit", "begin", "commit"]
    for number, fault in enumerate(FAULTS.values()):
        assert records(str(number), fault) == silent


@pairs(25, 800)
def test_no_hostile_reply_moves_a_sum_of_the_loop_on_a_grid_by_more(pairs: int) -> None:
    planned = plan(STRATEGIES["banded"])
    grid = LocalGrid(answering(), CLIENTS)
    clients = GridPopulation(grid, grid.get_node_ids())
    transcript = noted(planned, clients)
    for seed in range(pairs):
        clients.inject(TARGET, crafted(seed, CLIP))
        require(transcript.influence_of(clients, TARGET, planned.mechanism))


def test_influence_is_the_norm_of_c_times_what_moved() -> None:
    """Against mpmath with fifty digits, and with scales that differ from round to round."""
    draw, strategy = np.random.default_rng(1), STRATEGIES["BLT"]
    mechanism = Mechanism(strategy, PATTERN, 1.0)
    norms = {0: 0.7, 3: 1.0, 7: 3.3}
    moved = {t: draw.integers(-(2**20), 2**20, DIM) for t in norms}
    found = influence(mechanism, moved, norms, lattice_bits=20)
    with mpmath.workdps(50):
        C = mpmath.matrix(strategy.matrix().tolist())
        x = mpmath.matrix(ROUNDS, DIM)
        for t, steps in moved.items():
            for i in range(DIM):
                x[t, i] = mpmath.mpf(int(steps[i])) * mpmath.mpf(Lattice(norms[t], 20).step) / mpmath.mpf(norms[t])
        product = C * x
        squared = mpmath.fsum(product[i, j] ** 2 for i in range(product.rows) for j in range(product.cols))
        assert abs(mpmath.mpf(found.squared.numerator) / found.squared.denominator / squared - 1) < mpmath.mpf(10) ** -45
    assert (found.rounds, found.bound) == ((0, 3, 7), Fraction(mechanism.l2_sensitivity) ** 2)


def test_one_step_too_far_is_seen() -> None:
    mechanism = Mechanism(Identity(ROUNDS), PATTERN, 1.0)
    largest = np.array([2**24] + [0] * (DIM - 1))
    once = {0: largest}
    assert influence(mechanism, once, {0: 1.0}).holds
    assert not influence(mechanism, {0: largest + np.eye(DIM, dtype=np.int64)[3]}, {0: 1.0}).holds
    assert influence(mechanism, {0: largest * 2}, {0: 1.0}, relation="replace-one").holds
    assert not influence(mechanism, {0: largest * 2}, {0: np.float32(1.0)}).holds
    # Four rounds of one client, where three were promised.
    rounds = dict.fromkeys((0, 2, 4, 6), largest)
    found = influence(mechanism, rounds, dict.fromkeys(rounds, 1.0))
    assert found.largest <= found.allowed
    assert not found.holds
    assert "NOT within the bounds" in found.sentence()
