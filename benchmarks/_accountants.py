"""The peers of accounting.py, each with one way to be asked: imported late, so that their memory counts in no row of ours."""

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    ExplicitBracketInterval,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.pld import PLDAccountant
from opacus.accountants import PRVAccountant
from prv_accountant import PoissonSubsampledGaussianMechanism
from prv_accountant import PRVAccountant as MicrosoftAccountant

from hubbub.accounting import Event, Gaussian, PoissonSampled

Rounds = list[tuple[Event, int]]


def as_peer(rounds: Rounds) -> DpEvent:
    events = []
    for event, count in rounds:
        match event:
            case PoissonSampled(z, q):
                events.append(SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), count))
            case Gaussian(z):
                events.append(SelfComposedDpEvent(GaussianDpEvent(z), count))
            case _:
                raise ValueError(f"{event}: is not measured against a peer")
    return ComposedDpEvent(events)


def google(rounds: Rounds, delta: float) -> float:
    return float(PLDAccountant().compose(as_peer(rounds)).get_epsilon(delta))


def opacus(rounds: Rounds, delta: float) -> float:
    accountant = PRVAccountant()
    accountant.history = [(event.noise_multiplier, event.sampling_probability, count) for event, count in rounds]
    return float(accountant.get_epsilon(delta, eps_error=0.01))


def microsoft(rounds: Rounds, delta: float) -> float:
    variables = [PoissonSubsampledGaussianMechanism(event.sampling_probability, event.noise_multiplier) for event, _ in rounds]
    counts = [count for _, count in rounds]
    accountant = MicrosoftAccountant(variables, eps_error=0.01, delta_error=delta / 1000, max_self_compositions=counts)
    return float(accountant.compute_epsilon(delta, counts)[2])


def google_noise(sampling_probability: float, rounds: int, epsilon: float, delta: float) -> float:
    """The noise multiplier of Poisson-sampled rounds that meets a budget, searched for between 0.5 and 5."""

    def sampled(noise_multiplier: float) -> DpEvent:
        return as_peer([(PoissonSampled(noise_multiplier, sampling_probability), rounds)])

    return float(calibrate_dp_mechanism(PLDAccountant, sampled, epsilon, delta, ExplicitBracketInterval(0.5, 5.0)))
