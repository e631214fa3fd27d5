"""What publishing the best of a random number of runs costs: against its definition, and against dp_accounting."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import optimize
from scipy.special import ndtr

from hubbub.accounting import Gaussian, PoissonSampled, epsilon
from hubbub.accounting.selection import TRIAL_LAWS, selection_epsilon

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
DELTA = 1e-3


@pytest.mark.parametrize("law", TRIAL_LAWS)
@pytest.mark.parametrize("mean", [1.0, 10.0, 200.0])
def test_the_bound_is_that_of_dp_accounting_and_no_looser(law: str, mean: float) -> None:
    accountant = RdpAccountant()
    sampled = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0))
    trial = dp_accounting.SelfComposedDpEvent(sampled, 100)
    accountant.compose(RepeatAndSelectDpEvent(trial, mean, SHAPES[law]))
    theirs = accountant.get_epsilon(1e-5)
    ours = selection_epsilon([[(PoissonSampled(1.0, 0.05), 100)]], mean, 1e-5, "add-or-remove-one", law=law)
    # They search fewer orders, and put delta into epsilon by a looser rule.
    assert 0.99 * theirs < ours < theirs * (1 + 1e-9)


def best_densities(law: str, mean: float, mu: float) -> tuple[np.ndarray, np.ndarray, float, float]:
    """By definition: the density of the largest of K draws of N(0, 1) and of N(mu, 1) on a mesh; its step, and P(K = 0).

    It is f·G′(F), for the generating function G of K.
    """
    x, step = np.linspace(-12, 14, 520_001, retstep=True)

    def density(centre: float) -> np.ndarray:
        f, s = np.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi), ndtr(x - centre)
        if law == "geometric":
            g = 1 / mean
            return f * g / (1 - (1 - g) * s) ** 2
        if law == "logarithmic":
            g = optimize.brentq(lambda g: (1 / g - 1) / math.log(1 / g) - mean, 1e-12, 1 - 1e-9, xtol=1e-15)
            return f * (1 - g) / ((1 - (1 - g) * s) * math.log(1 / g))
        return f * mean * np.exp(mean * (s - 1))

    return density(0.0), density(mu), float(step), math.exp(-mean) if law == "poisson" else 0.0


def loss_beyond(one: np.ndarray, other: np.ndarray, step: float, nothing: float, eps: float) -> float:
    return float(np.maximum(one - math.exp(eps) * other, 0).sum() * step + max(0.0, nothing * (1 - math.exp(eps))))


@pytest.mark.parametrize("law", TRIAL_LAWS)
@pytest.mark.parametrize(("mean", "z"), [(5.0, 1.0), (40.0, 3.0)])
def test_the_largest_of_randomly_many_values_keeps_the_bound_and_breaks_that_of_one(law: str, mean: float, z: float) -> None:
    release = [(Gaussian(z), 1)]
    bound = selection_epsilon([release], mean, DELTA, "zero-out", law=law)
    alone = epsilon(release, DELTA, "zero-out")
    without, having, step, nothing = best_densities(law, mean, 1 / z)
    assert without.sum() * step + nothing == pytest.approx(1, abs=1e-6)
    worst = max(loss_beyond(having, without, step, nothing, bound), loss_beyond(without, having, step, nothing, bound))
    assert worst <= DELTA
    alone_worst = max(loss_beyond(having, without, step, nothing, alone), loss_beyond(without, having, step, nothing, alone))
    assert alone_worst > DELTA


@pytest.mark.parametrize("law", TRIAL_LAWS)
def test_the_dearest_candidate_decides_and_more_trials_cost_more(law: str) -> None:
    cheap, dear = [(Gaussian(8.0), 3)], [(PoissonSampled(0.9, 0.1), 20), (Gaussian(4.0), 1)]
    relation = "add-or-remove-one"

    def best_of(mean: float, *candidates: list) -> float:
        return selection_epsilon(candidates, mean, 1e-5, relation, law=law)

    assert best_of(10, cheap, dear) >= best_of(10, dear) > best_of(10, cheap)
    assert best_of(11, cheap) > best_of(10, cheap)
