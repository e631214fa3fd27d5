"""What somebody's own population, strategy or sum changes once the promise was made, and the guarantee counts on: refused."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hubbub.datasets import Dataset
from hubbub.errors import ConfigError, LedgerError, ParticipationError
from hubbub.experiment import config as configs
from hubbub.experiment.build import build
from hubbub.mechanism import Mechanism
from hubbub.mechanism import participation as parts
from hubbub.mechanism.private_evaluation import PrivateEvaluation
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.noise.lattice import Lattice
from hubbub.training import ExamplePopulation, LatticeSum, PlainSum, Population, RunPlan, RunStore, train
from small_runs import PLANS, SAMPLED, linear

NAMES = [f"client {i}" for i in range(12)]
# All that count on the list of clients staying as it is.
COUNTING: list[parts.Participation] = [*SAMPLED, parts.FixedEpochs(2, 3)]
PATTERNS: list[parts.Participation] = [parts.MinSeparation(3, 2), parts.SingleParticipation()]


class Silent(Population):
    """A population of one's own, whose clients add nothing; ``lists`` has the clients of each round, and of those after."""

    def __init__(self, *lists: Sequence[Hashable]) -> None:
        self.lists, self.rounds = lists, 0
        self.asked: list[list[Hashable]] = []

    @property
    def clients(self) -> Sequence[Hashable]:
        return self.lists[min(self.rounds, len(self.lists) - 1)]

    def collect(  # another implementation
        self, cohort: Sequence[Hashable], model: nn.Module, clip_norm: float | None, round_index: int, split: object = None
    ) -> LatticeSum:
        self.rounds += 1
        self.asked.append(list(cohort))
        dim = sum(p.numel() for p in model.parameters() if p.requires_grad)
        return LatticeSum(torch.zeros(dim, dtype=torch.int64), Lattice(clip_norm or 1.0), {})


def plan(participation: parts.Participation, size: float = 4, rounds: int = 6) -> RunPlan:
    if isinstance(participation, parts.SingleParticipation):
        size = 2
    return RunPlan(rounds, participation, size, Mechanism(Identity(rounds), participation, 0.7), clip_norm=0.5)


def trained(population: Any, participation: parts.Participation, store: RunStore | None = None, rounds: int = 6) -> None:
    run = train(plan(participation), population, linear(), store)
    for _ in range(rounds):
        next(run)
    run.close()


@pytest.mark.parametrize("participation", [*COUNTING, *PATTERNS], ids=repr)
@pytest.mark.parametrize("twice", [[*NAMES[:11], "client 3"], [7, "7", *NAMES[:10]], [np.int64(7), 7, *NAMES[:10]]], ids=str)
def test_prt_9_a_client_listed_twice_is_refused_at_the_start(participation: parts.Participation, twice: list[Hashable]) -> None:
    population = Silent(twice)
    with pytest.raises(ParticipationError, match=r"clients: .* is listed at place \d+, too"):
        trained(population, participation)
    assert not population.rounds


@pytest.mark.parametrize("participation", COUNTING, ids=repr)
@pytest.mark.parametrize("later", [NAMES[:4], [*NAMES, "another"], [*NAMES[:11], "another"], NAMES[::-1]], ids=len)
def test_prt_10_a_list_that_changes_after_a_round_is_refused_where_what_is_promised_counts_on_it(
    participation: parts.Participation, later: list[str], tmp_path: Path
) -> None:
    population = Silent(NAMES, later)
    with pytest.raises(ParticipationError, match=rf"round 1: the population lists {len(later)} clients, others than the 12"):
        trained(population, participation)
    assert population.rounds == 1
    trained(Silent(NAMES), participation, RunStore(tmp_path), rounds=2)
    with pytest.raises(
        (ParticipationError, ConfigError, LedgerError), match=r"began with other clients|(clients was|population =) 12"
    ):
        trained(Silent(later), participation, RunStore(tmp_path), rounds=1)
    trained(Silent(NAMES), participation, RunStore(tmp_path), rounds=4)


def test_prt_10_a_list_is_the_one_that_the_run_began_with_though_it_is_changed_in_place() -> None:
    names = list(NAMES)
    population = Silent(names)
    run = train(plan(parts.PoissonSampling(0.5)), population, linear())
    next(run)
    del names[4:]
    with pytest.raises(ParticipationError, match="lists 4 clients"):
        next(run)


@pytest.mark.parametrize("participation", PATTERNS, ids=repr)
def test_prt_10_in_patterns_the_ledger_knows_clients_by_name_and_others_may_come(participation: parts.Participation) -> None:
    population = Silent(NAMES, [*NAMES[::-1], "one more"], [*NAMES, "and", "others"])
    trained(population, participation)
    joined: dict[Hashable, list[int]] = {}
    for round_index, cohort in enumerate(population.asked):
        for client in cohort:
            joined.setdefault(client, []).append(round_index)
    assert all(participation.allows(rounds) for rounds in joined.values())


@pytest.mark.parametrize("examples", [60, pytest.param(20_000, marks=pytest.mark.slow)])
def test_prt_9_prt_10_a_round_is_of_one_list_that_has_each_name_once(examples: int) -> None:
    names = st.sampled_from([*NAMES[:6], 0, 1, "0", "1"])

    @settings(max_examples=examples, deadline=None)
    @given(
        st.lists(st.lists(names, min_size=1, max_size=8), min_size=1, max_size=3), st.sampled_from([*COUNTING[::4], *PATTERNS])
    )
    def law(lists: list[list[Hashable]], participation: parts.Participation) -> None:
        """By definition: a round is run only if no name of its list comes twice, and the list is that of the first."""
        distinct = [len({str(name) for name in listed}) == len(listed) for listed in lists]
        fixed = participation not in PATTERNS
        fine = [ok and (not fixed or listed == lists[0]) for ok, listed in zip(distinct, lists, strict=True)]
        first_bad = fine.index(False) if False in fine else 3
        population = Silent(*lists)
        run = train(replace(plan(participation), expected_cohort_size=1), population, linear())
        done = 0
        try:
            for _ in range(3):
                next(run)
                done += 1
        except ParticipationError:
            # A pattern may also run out of clients.
            assert done == first_bad or (not fixed and done < first_bad)
        else:
            assert first_bad == 3

    law()


def test_prt_10_a_client_that_a_population_strikes_off_its_cohort_took_part_all_the_same() -> None:
    class Strikes(Silent):
        def collect(self, cohort, model, clip_norm, round_index, split=None):  # type: ignore[no-untyped-def]
            total = super().collect(cohort, model, clip_norm, round_index)
            del cohort[1:]
            return total

    population = Strikes(NAMES)
    trained(population, parts.MinSeparation(3, 2))
    gaps = [set(a) & set(b) for a, b in zip(population.asked, population.asked[1:], strict=False)]
    assert not any(gaps)


def test_a_participation_of_one_s_own_class_is_refused() -> None:
    class Lenient(parts.MinSeparation):
        def may_follow(self, rounds: Sequence[int], round_index: int) -> bool:
            return True

    with pytest.raises(TypeError, match=r"participation = .*must be SingleParticipation\(\)"):
        Mechanism(Identity(6), Lenient(3, 2), 1.0)


@pytest.mark.parametrize("part", ["trained", "frozen", "buffer", "before"])
def test_shp_10_a_population_that_trains_the_model_itself_is_refused_and_the_model_is_put_back(part: str) -> None:
    class InPlace(Silent):
        def prepare(self, model: nn.Module, cohort: int) -> None:
            with torch.no_grad():
                model.weight.add_(part == "before")

        def collect(self, cohort, model, clip_norm, round_index, split=None):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                getattr(model, {"frozen": "fixed", "buffer": "kept"}.get(part, "weight")).add_(1.0)
            return super().collect(cohort, model, clip_norm, round_index)

    model = linear()
    model.fixed = nn.Parameter(torch.ones(2), requires_grad=False)
    model.register_buffer("kept", torch.ones(2), persistent=False)
    before = model.weight.detach().clone()
    with pytest.raises(ConfigError, match=r"model: was changed by InPlace\.(collect|prepare), and by no release"):
        next(train(PLANS["independent, everyone"], InPlace(NAMES), model))
    assert torch.equal(model.weight, before)


def test_a_population_that_cannot_do_what_is_planned_is_refused_before_the_first_round() -> None:
    population, everyone = Silent(NAMES), PLANS["independent, everyone"]
    with pytest.raises(ConfigError, match="evaluation: a Silent measures nothing of its clients"):
        next(train(replace(everyone, evaluation=PrivateEvaluation(1.0)), population, linear()))
    examples = ExamplePopulation(torch.zeros(12, 3), torch.zeros(12).long(), nn.functional.cross_entropy)
    with pytest.raises(ConfigError, match="privacy_unit = 'client': a ExamplePopulation clips single examples"):
        next(train(everyone, examples, linear()))
    assert not population.asked


@pytest.mark.parametrize("change", ["trained", "half", "replaced"])
def test_shp_10_a_model_that_is_changed_between_rounds_is_refused(change: str) -> None:
    model = linear()
    run = train(PLANS["independent, everyone"], Silent(NAMES), model)
    next(run)
    with torch.no_grad():
        model.weight = nn.Parameter(model.weight + 0) if change == "replaced" else model.weight
        model.half() if change == "half" else model.weight.mul_(2.0)
    with pytest.raises(ConfigError, match=r"changed between rounds|parameters were replaced"):
        next(run)


@pytest.mark.parametrize(
    "make",
    [lambda total: LatticeSum(total.long(), Lattice(0.5), {}), lambda total: PlainSum(total, {})],
    ids=["lattice", "plain"],
)
def test_shp_11_a_sum_that_torch_would_repeat_over_its_noise_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"total has shape \(1,\), its row of noise \(8,\)"):
        make(torch.ones(1, dtype=torch.float64)).open(torch.zeros(8, dtype=torch.float64))


@dataclass
class Own:
    """A strategy of one's own, as ours of six rounds, but for what becomes of it."""

    factor: float = 1.0
    from_round: int = 0
    remembers: bool = False

    def __post_init__(self) -> None:
        self._ours, self._kept = toeplitz.square_root(6, 3), ()
        self.rounds, self.memory_rows = 6, 2

    def matrix(self) -> Any:
        return self._ours.matrix() * (self.factor if self.from_round == 0 else 1.0)

    def sensitivity(self, participation: parts.Participation) -> Any:
        return self._ours.sensitivity(participation)

    def step(self, round_index: int, draw: Any, memory: Any) -> Any:
        if self.remembers:
            # In itself, and not in what it is given.
            memory = self._kept if round_index else ()
        row, kept = self._ours.step(round_index, draw, memory)
        self._kept = kept
        return (row / self.factor if round_index >= self.from_round else row), (() if self.remembers else kept)


def own_plan(strategy: Own) -> RunPlan:
    pattern = parts.every_round(6)
    return RunPlan(6, pattern, 12, Mechanism(strategy, pattern, 1.0), clip_norm=0.5)


def test_a_strategy_of_one_s_own_that_stays_as_it_is_runs() -> None:
    assert len(list(train(own_plan(Own()), Silent(NAMES), linear()))) == 6


def test_rng_11_a_strategy_whose_matrix_changed_since_it_was_promised_is_refused() -> None:
    strategy = Own()
    promised = own_plan(strategy)
    assert promised.mechanism.l2_sensitivity > 0
    strategy.factor = 4.0
    with pytest.raises(ConfigError, match=r"strategy = Own: has a sensitivity of .* its matrix was changed"):
        next(train(promised, Silent(NAMES), linear()))


@pytest.mark.parametrize("from_round", [0, 3])
def test_rng_11_a_strategy_that_changes_in_the_run_is_refused_before_its_round_is_charged(from_round: int) -> None:
    strategy = Own()
    run = train(own_plan(strategy), Silent(NAMES), linear())
    done = [next(run), next(run)]
    strategy.factor, strategy.from_round = 1e6, from_round
    with pytest.raises(ConfigError, match=r"strategy = Own: round \d is not that of the promise any more"):
        done.extend(run)
    assert len(done) == max(2, from_round)


def test_rng_11_a_strategy_that_remembers_in_itself_is_refused() -> None:
    with pytest.raises(Exception, match=r"not that of the promise any more|does not invert|could not be broadcast|mismatch"):
        list(train(own_plan(Own(remembers=True)), Silent(NAMES), linear()))


def tokens(first: list[int]) -> Dataset:
    drawn = torch.randint(9, 19, (40, 4), generator=torch.Generator().manual_seed(0))
    drawn[0] = torch.tensor(first)
    targets = torch.arange(40) % 2
    return Dataset(drawn, targets, drawn[:4], targets[:4])


def one(path: str | None = None) -> Dataset:
    return tokens([1, 2, 3, 4])


def other(path: str | None = None) -> Dataset:
    return tokens([5, 6, 7, 8])


def table(shape: tuple[int, ...], classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Flatten(), nn.Linear(8 * shape[0], classes))


def test_cli_15_the_first_model_of_a_run_was_called_on_nobodys_examples() -> None:
    settings = {"training": {"rounds": 1}, "privacy": {"epsilon": 2.0, "unit": "example"}}
    settings["model"] = {"name": "test_own_classes:table"}
    data = [{"data": {"name": f"test_own_classes:{name}"}} for name in ("one", "other")]
    made = [build(configs.resolve(settings, own), allow_import=True) for own in data]
    assert all(torch.equal(*pair) for pair in zip(*(run.model.parameters() for run in made), strict=True))
