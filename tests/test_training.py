"""The loop: what a round adds to the model, and plans that are refused before the first round."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from hubbub import accounting
from hubbub.errors import BudgetError
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import PoissonSampling, every_round
from hubbub.mechanism.strategies import Identity
from hubbub.training import PlainSum, RunPlan, train
from hubbub.training.aggregate import Population
from small_runs import CLIENTS, PLANS, linear, population


def test_a_simulation_is_a_function_of_its_seed() -> None:
    models = [linear() for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        list(train(replace(PLANS["independent, Poisson"], seed=seed), population(), model))
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)


def test_num_11_an_empty_cohort_is_a_round_like_any_other() -> None:
    plan = RunPlan(
        3, PoissonSampling(1e-9), 1.0, Mechanism(Identity(3), PoissonSampling(1e-9), 1.0), clip_norm=1.0, noise="simulation"
    )
    results = list(train(plan, population(), linear()))
    assert [r.clients for r in results] == [0, 0, 0]
    assert results[-1].epsilon > 0 or accounting.guarantee(plan.mechanism, plan.delta).epsilon == 0


def test_the_denominator_is_the_expected_cohort_and_not_the_actual_one() -> None:
    class Ones(Population):
        clients: Sequence[int] = range(CLIENTS)

        def collect(self, cohort, model, clip_norm, round_index, split=None):  # another implementation
            return PlainSum(torch.full((8,), float(len(cohort)), dtype=torch.float64), {})

    model = linear()
    before = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()
    plan = RunPlan(1, PoissonSampling(0.5), 6.0, noise="simulation")
    (result,) = train(plan, Ones(), model)
    after = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(after - before, torch.full((8,), result.clients / 6.0))


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighboring_relation": "add-or-remove-one"}, "add-or-remove-one"),
        ({"accountant": "tihgt"}, "did you mean 'tight'"),
    ],
    ids=["relation", "accountant"],
)
def test_acc_8_what_accounting_will_not_state_is_refused_before_the_first_release(changes: dict, message: str) -> None:
    with pytest.raises((ValueError, BudgetError), match=message):
        replace(PLANS["banded, separated"], **changes)
