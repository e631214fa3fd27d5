"""Epsilon and calibration, against dp_accounting, Opacus, prv_accountant and opake, and against limits.

Both sides compute from nothing in each repetition. dp_accounting composes privacy loss distributions at its default mesh;
Opacus' and Microsoft's accountants bound privacy random variables with an additive error of 0.01 in epsilon; the upper end is
compared. opake composes privacy loss distributions in Rust, at its default mesh. The dearest problem is given to the peer once.

Source: https://github.com/google/differential-privacy/tree/main/python/dp_accounting,
https://github.com/meta-pytorch/opacus, https://github.com/microsoft/prv_accountant, https://pypi.org/project/opake/.
"""

from collections.abc import Callable
from functools import partial

import _runner
from hubbub.accounting import Event, Gaussian, PoissonSampled, TreeAggregation, calibrate_noise_multiplier, epsilon
from hubbub.accounting.dominating_pairs import as_gaussian
from hubbub.mechanism import gaussian

RELATION = "add-or-remove-one"
# The peer's answer may be off by this, relative to it; at 100,000 rounds its own mesh is.
TOLERANCE = 1e-3
# An additive error of 0.01 on either side of an epsilon of 3, and the peers' own rounding.
COARSE_TOLERANCE = 1e-2
BUDGET = 2.0
DELTA = 1e-6
Rounds = list[tuple[Event, int]]

FEW: Rounds = [(PoissonSampled(1.0, 0.01), 2000)]
MANY: Rounds = [(PoissonSampled(1.0, 0.01), 100_000)]
NOISY: Rounds = [(PoissonSampled(50.0, 0.1), 10_000)]
DIFFERENT: Rounds = [(PoissonSampled(1 + i / 100, 0.01 + i / 10_000), 20) for i in range(100)]


def compare_epsilon(
    name: str, rounds: Rounds, peer: Callable[[Rounds, float], float], goal: float, seconds: float, tolerance: float = TOLERANCE
) -> _runner.Row:
    return _runner.compare(
        f"{name}; {peer.__name__}",
        lambda: epsilon(rounds, DELTA, RELATION),
        lambda: peer(rounds, DELTA),
        seconds=seconds,
        tolerance=tolerance,
        goal=goal,
    )


def compare_calibration(peer: Callable[..., float], goal: float, seconds: float) -> _runner.Row:
    return _runner.compare(
        f"noise multiplier, 2,000 rounds; {peer.__name__.removesuffix('_noise')}",
        lambda: calibrate_noise_multiplier(PoissonSampled(1.0, 0.01), 2000, BUDGET, DELTA, RELATION),
        lambda: peer(0.01, 2000, BUDGET, DELTA),
        seconds=seconds,
        tolerance=TOLERANCE,
        goal=goal,
    )


def epsilon_rows(seconds: float) -> list[_runner.Row]:
    from _accountants import google, microsoft, opacus

    return [
        compare_epsilon("epsilon, one Gaussian", [(Gaussian(1.0), 1)], google, 20, seconds),
        compare_epsilon("epsilon, 2,000 rounds", FEW, google, 20, seconds),
        compare_epsilon("epsilon, 2,000 rounds", FEW, opacus, 1, seconds, COARSE_TOLERANCE),
        compare_epsilon("epsilon, 2,000 rounds", FEW, microsoft, 1, seconds, COARSE_TOLERANCE),
        compare_epsilon("epsilon, 100,000 rounds", MANY, google, 5, seconds),
        compare_epsilon("epsilon, 100,000 rounds", MANY, opacus, 1, 0, COARSE_TOLERANCE),
    ]


def different_rows(seconds: float) -> list[_runner.Row]:
    from _accountants import google

    # The peer takes half a minute, so it is called once; ours as often as fits.
    ours = _runner.measure(lambda: epsilon(DIFFERENT, DELTA, RELATION), lambda: 0.0, seconds)
    peer = _runner.measure(lambda: 0.0, lambda: google(DIFFERENT, DELTA), 0)
    name = "epsilon, 100 kinds of round, 20 of each; google"
    _runner.require_agreement(name, ours.our_answer, peer.peer_answer, TOLERANCE)
    return [_runner.Row(name, ours.ours, peer.peer, 50)]


def calibration_rows(seconds: float) -> list[_runner.Row]:
    from _accountants import google_noise

    return [compare_calibration(google_noise, 50, seconds)]


def opake_rows(seconds: float) -> list[_runner.Row | _runner.Skipped]:
    try:
        from _opake import opake, opake_noise
    except (ImportError, TypeError) as error:
        return [_runner.Skipped("opake", f"{error}; make the environment with Python 3.13")]

    tight = _runner.measure(lambda: epsilon(NOISY, DELTA, RELATION), lambda: opake(NOISY, DELTA), 0)
    name = "epsilon itself, 10,000 rounds at noise multiplier 50 and q = 0.1; opake"
    return [
        compare_epsilon("epsilon, one Gaussian", [(Gaussian(1.0), 1)], opake, 1, seconds),
        compare_epsilon("epsilon, 2,000 rounds", FEW, opake, 1, seconds),
        compare_epsilon("epsilon, 100,000 rounds", MANY, opake, 1, seconds),
        compare_epsilon("epsilon, 100 kinds of round, 20 of each", DIFFERENT, opake, 1, seconds),
        compare_calibration(opake_noise, 1, seconds),
        _runner.Row(name, float(tight.our_answer), float(tight.peer_answer), 1, unit="epsilon"),
    ]


def many_gaussians() -> Callable[[], float]:
    return lambda: sum(gaussian.epsilon(10.0**-k, 0.5 + k / 10) for k in range(1, 11) for _ in range(100))


def tree() -> Callable[[], float]:
    return lambda: as_gaussian(TreeAggregation(7.0, 2000, max_participations=6, min_separation=314)).noise_multiplier


def little_noise(noise_multiplier: float) -> Callable[[], float]:
    return lambda: epsilon([(PoissonSampled(noise_multiplier, 0.01), 2000)], DELTA, RELATION)


def limit_rows(seconds: float) -> list[_runner.Row]:
    gaussians = _runner.alone(many_gaussians)
    rows = [_runner.Row("1,000 epsilons of one Gaussian; peer: a limit of 0.1 ms each", gaussians.seconds, 0.1, 1.0)]
    found = _runner.alone(tree)
    good, rho = abs(found.answer**-2 / 2 - 79 / 98) < 1e-12, f"zCDP rho {found.answer**-2 / 2:.6f}"
    note = f"{rho}; the published notebook took 348 s"
    rows.append(
        _runner.Row("tree, 2,000 rounds, 6 participations; peer: a limit of 2 s", found.seconds, 2.0, 1.0, good=good, note=note)
    )
    for noise_multiplier in (1e-6, 1e-3, 0.01):
        spent = _runner.alone(partial(little_noise, noise_multiplier))
        name = f"epsilon, 2,000 rounds at noise multiplier {noise_multiplier:g}; peer: a limit of"
        note = f"epsilon {spent.answer:.6g}"
        rows.append(_runner.Row(f"{name} 1 s", spent.seconds, 1.0, 1.0, note=note))
        rows.append(_runner.Row(f"{name} 256 MB", spent.peak_bytes / 2**20, 256, 1.0, unit="MB"))
    return rows


if __name__ == "__main__":
    _runner.main(__doc__, epsilon_rows, different_rows, calibration_rows, opake_rows, limit_rows)
