"""The loop: what a population sums up, what a round adds to the model, and plans that are refused before the first round."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.errors import BudgetError, ConfigError
from hubbub.mechanism.participation import PoissonSampling, every_round
from hubbub.testing import ContractError, check_population
from hubbub.training import LocalTraining, PlainSum, Population, RunPlan, SimulatedPopulation, train
from hubbub.training.simulation.functional import FlatModel
from small_runs import CLIENTS, PLANS, flat, linear, population


def test_a_simulation_is_a_function_of_its_seed() -> None:
    models = [linear() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        list(train(replace(PLANS["independent, Poisson"], seed=seed), population(), model))
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)


def test_the_denominator_is_the_expected_cohort_and_not_the_actual_one() -> None:
    class Ones(Population):
        clients: Sequence[int] = range(CLIENTS)

        def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
            return PlainSum(torch.full((8,), float(len(cohort)), dtype=torch.float64), {})

    model = linear()
    (result,) = train(RunPlan(1, PoissonSampling(0.5), 6.0, noise="simulation"), Ones(), model)
    torch.testing.assert_close(flat(model) - flat(linear()), torch.full((8,), result.clients / 6.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": None}, "clip_norm"),
        ({"participation": every_round(6)}, "the mechanism promises"),
        ({"rounds": 7}, "noise for 6 rounds"),
        ({"expected_cohort_size": 0}, "expected_cohort_size"),
        ({"delta": 1.5}, "delta"),
        ({"noise": "none"}, "noise"),
        ({"neighboring_relation": "add-or-remove-one"}, "add-or-remove-one"),
        ({"accountant": "tihgt"}, "did you mean 'tight'"),
    ],
    ids=str,
)
def test_acc_8_a_plan_that_contradicts_itself_or_that_accounting_will_not_state_is_refused(changes: dict, message: str) -> None:
    with pytest.raises((ValueError, BudgetError), match=message):
        replace(PLANS["banded, separated"], **changes)


def test_the_lean_loop_is_plain_sgd() -> None:
    clients, model = population(), linear()
    update = clients.collect([4], model, None, 1).total
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
        best = min(best, float((flat(trial) - flat(model) - update).abs().max()))
    assert best < 1e-6


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


class Hostile(SimulatedPopulation):
    """Clients whose training ends where they please."""

    ENDS = (math.nan, math.inf, -math.inf, 1e30, 0.0)

    def updates(self, cohort, model, round_index):  # another implementation
        for client, update, loss in super().updates(cohort, model, round_index):
            yield client, torch.full_like(update, self.ENDS[client]) if client < len(self.ENDS) else update, loss


HOSTILE = Hostile(population()._examples, F.cross_entropy, LocalTraining())


def test_num_7_num_8_num_9_the_population_keeps_its_contract_with_hostile_clients() -> None:
    check_population(HOSTILE, linear(), clip_norm=0.25)


def test_a_population_that_forgets_to_clip_is_caught() -> None:
    class Forgets(Hostile):
        def collect(self, cohort, model, clip_norm, round_index, split=None):  # a deliberately broken twin
            return super().collect(cohort, model, None, round_index, split)

    with pytest.raises(ContractError, match="moves the sum"):
        check_population(Forgets(HOSTILE._examples, F.cross_entropy, LocalTraining()), linear(), clip_norm=0.25)


def test_num_7_num_8_a_run_with_hostile_clients_ends_with_a_finite_model() -> None:
    model = linear()
    list(train(PLANS["independent, everyone"], HOSTILE, model))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_shp_2_shp_3_a_buffer_is_refused_and_a_constant_is_not() -> None:
    model = linear()
    model.register_buffer("scale", torch.ones(1), persistent=False)
    FlatModel(model)
    model.register_buffer("mean", torch.ones(1))
    with pytest.raises(ConfigError, match="'mean'"):
        FlatModel(model)
