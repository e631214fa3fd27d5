"""opake's accountant, with one way to be asked: a module of its own, since not every Python can import it.

It remembers what it composed by all settings of its mesh, of which a seed is one that only its Monte Carlo uses. Each call has
another seed, so that it begins with nothing, as ours does.
"""

from functools import reduce
from itertools import count
from operator import or_

from opake import accounting
from opake.accounting.types import DpProcess
from opake.dpsgd.accounting import gaussian, poisson

from hubbub.accounting import Event, Gaussian, PoissonSampled

Rounds = list[tuple[Event, int]]
_SEEDS = count()


def as_peer(rounds: Rounds) -> DpProcess:
    processes = []
    for event, times in rounds:
        match event:
            case PoissonSampled(z, q):
                processes.append(poisson(gaussian(z), q) * times)
            case Gaussian(z):
                processes.append(gaussian(z) * times)
            case _:
                raise ValueError(f"{event}: is not measured against a peer")
    return reduce(or_, processes)


def opake(rounds: Rounds, delta: float) -> float:
    return float(as_peer(rounds).epsilon_at(delta, seed=next(_SEEDS)))


def opake_noise(sampling_probability: float, rounds: int, epsilon: float, delta: float) -> float:
    """The noise multiplier of Poisson-sampled rounds that meets a budget, searched for between 0.5 and 5."""
    accounting.set_discretization(seed=next(_SEEDS))
    budget = accounting.epsilon_budget(epsilon, delta=delta)
    found = accounting.calibrate(budget, lambda z: as_peer([(PoissonSampled(z, sampling_probability), rounds)]), 0.5, 5.0)
    return float(found.param)
