import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub import accounting
from hubbub.accounting.conversions import bun_steinke_epsilon_from_zcdp, epsilon_from_rdp, epsilon_from_zcdp
from hubbub.accounting.events import RELATIONS, Event, FixedSizeSampled, Gaussian, PoissonSampled, TruncatedPoissonSampled
from hubbub.accounting.moments import log_expm1
from hubbub.accounting.renyi import DEFAULT_ORDERS, rdp, rdp_delta, rdp_epsilon
from hubbub.mechanism import gaussian

ACCOUNTING = oracle("accounting")
# What a stated divergence may exceed the true one by, relative.
TOLERANCE = 3e-11


def density_of(parts, z, x):
    """A mixture Σ w·N(c, z²) at x, relative to N(0, z²)."""
    return mpmath.fsum(w * mpmath.exp((c * x - mpmath.mpf(c) ** 2 / 2) / z**2) for c, w in parts)


def divergence_of(halves, z, order, breaks):
    """ln(1 + ∫ Q((P/Q)^a − 1 − a(P/Q − 1)))/(a − 1) by 24-digit quadrature; each half is (P, Q, from, to)."""
    with mpmath.workdps(24):
        a, z = mpmath.mpf(order), mpmath.mpf(z)
        total = mpmath.mpf(0)
        for p_parts, q_parts, low, high in halves:

            def integrand(x, p_parts=p_parts, q_parts=q_parts):
                p, q = density_of(p_parts, z, x), density_of(q_parts, z, x)
                return (p**a * q ** (1 - a) - q - a * (p - q)) * mpmath.npdf(x, 0, z)

            reach = 14 * z
            low, high = max(low, min(0, 1 - order, 2) - 2 - reach), min(high, 2 * order + reach)
            points = [low, *(b for b in breaks if low < b < high), high]
            total += mpmath.quad(integrand, points)
        return float(mpmath.log1p(total) / (a - 1))


def laws_by_definition(q):
    """Sampled events as the pairs of outputs behind them, in clip norms: (P, Q, from, to) for each half."""
    none = [(0, mpmath.mpf(1))]

    def mixture(c):
        return [(0, 1 - mpmath.mpf(q)), (c, mpmath.mpf(q))]

    return {
        ("poisson", "add-or-remove-one"): [
            [(mixture(1), none, -mpmath.inf, mpmath.inf)],
            [(none, mixture(1), -mpmath.inf, mpmath.inf)],
        ],
        ("poisson", "replace-one"): [[(mixture(1), mixture(-1), -mpmath.inf, mpmath.inf)]],
        ("fixed", "add-or-remove-one"): [
            [(mixture(2), none, -mpmath.inf, mpmath.inf)],
            [(none, mixture(2), -mpmath.inf, mpmath.inf)],
        ],
        # Above loss 0 one pair, below it the reverse, so that both halves lie beyond the same point.
        ("fixed", "replace-one"): [[(mixture(2), none, 1, mpmath.inf), (none, mixture(2), 1, mpmath.inf)]],
        ("fixed", "zero-out"): [
            [(mixture(2), mixture(1), 1.5, mpmath.inf), (none, mixture(1), 0.5, mpmath.inf)],
            [(mixture(1), none, 0.5, mpmath.inf), (mixture(1), mixture(2), 1.5, mpmath.inf)],
        ],
    }


@pytest.mark.parametrize(("kind", "q", "z", "order", "relation"), [
    ("poisson", 0.1, 4.0, 1.1, "add-or-remove-one"),
    ("poisson", 0.01, 1.0, 7.3, "zero-out"),
    ("poisson", 0.01, 1.0, 7.3, "replace-one"),
    ("fixed", 0.01, 1.5, 2.2, "replace-one"),
    ("fixed", 0.01, 1.5, 2.2, "zero-out"),
    *(pytest.param(*case, relation, marks=pytest.mark.slow) for relation in RELATIONS for case in [
        ("poisson", 0.5, 0.5, 2.5), ("fixed", 0.1, 4.0, 1.5), ("fixed", 0.5, 0.8, 3.7), ("fixed", 0.1, 0.3, 2.3)
    ]),
])  # fmt: skip
def test_divergences_at_real_orders_are_those_of_the_dominating_pair(kind, q, z, order, relation) -> None:
    event = PoissonSampled(z, q) if kind == "poisson" else FixedSizeSampled(z, round(1000 * q), 1000)
    # Poisson sampling does not tell zero-out from removal: in either the record's place is left empty.
    key = (kind, "add-or-remove-one" if kind == "poisson" and relation == "zero-out" else relation)
    breaks = [-4 * z, -2 * z, -z, 0, 0.5, 1, 1.5, 2, order, 1 + z, 2 + 2 * z, order + 2 * z, 2 * order + 4 * z]
    truth = max(divergence_of(halves, z, order, sorted(set(breaks))) for halves in laws_by_definition(q)[key])
    ours = float(rdp(event, [order], relation)[0])
    assert truth * (1 - 1e-13) <= ours <= truth * (1 + TOLERANCE)


@pytest.mark.parametrize("point", ACCOUNTING["raw_rdp_poisson"]["points"],
                         ids=lambda p: f"{p['q']}-{p['z']}")  # fmt: skip
def test_whole_orders_of_poisson_sampling_are_the_published_ones_and_fractional_ones_no_larger(point: dict) -> None:
    ours = rdp(PoissonSampled(point["z"], point["q"]), point["orders"], "add-or-remove-one")
    for order, value, peer in zip(point["orders"], ours, point["rdp"], strict=True):
        if peer is None or math.isinf(peer):
            continue
        if order == int(order):
            assert value == pytest.approx(peer, rel=1e-9, abs=5e-14)
        else:
            # The peer adds up the absolute values of an alternating series.
            assert value <= peer * (1 + 1e-9) + 5e-14


@pytest.mark.parametrize("q", [1e-300, 1e-9, 1e-3, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("z", [1e-12, 1e-3, 0.05, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_noise_and_no_rate_gives_nan_or_less_than_the_binomial_sum_or_more_than_no_sampling(q, z, relation) -> None:
    orders = [1.0001, 1.5, 2.0, 3.0, 17.0, 63.0, 1e5]
    ours = rdp(PoissonSampled(z, q), orders, relation)
    unsampled = rdp(Gaussian(z), orders, relation)
    assert np.all(np.isfinite(ours))
    assert np.all(ours > 0)
    assert np.all(ours <= unsampled)
    for order, value in zip(orders[2:5], ours[2:5], strict=True):
        with mpmath.workdps(60):
            a, rate, noise = int(order), mpmath.mpf(q), mpmath.mpf(z)
            if relation == "replace-one":
                continue
            chances = ((k, mpmath.binomial(a, k) * (1 - rate) ** (a - k) * rate**k) for k in range(2, a + 1))
            terms = (chance * mpmath.expm1((k * k - k) / (2 * noise**2)) for k, chance in chances)
            truth = mpmath.log1p(mpmath.fsum(terms)) / (a - 1)
            assert truth * (1 - 1e-13) <= mpmath.mpf(float(value)) <= truth * (1 + TOLERANCE) + 2e-300


EVENTS = st.one_of(
    st.builds(PoissonSampled, st.floats(0.05, 50), st.floats(1e-6, 1)),
    st.builds(
        lambda z, m, n: FixedSizeSampled(z, min(m, n), n), st.floats(0.05, 50), st.integers(1, 500), st.integers(1, 5000)
    ),
    st.builds(TruncatedPoissonSampled, st.floats(0.05, 50), st.floats(1e-5, 1), st.integers(1, 20), st.integers(1, 30)),
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    event=EVENTS,
    relation=st.sampled_from(RELATIONS),
    orders=st.lists(st.floats(1.001, 300), min_size=3, max_size=3, unique=True),
)
def test_divergences_grow_with_the_order_and_their_cumulant_is_convex(event: Event, relation: str, orders: list[float]) -> None:
    low, middle, high = sorted(orders)
    r = rdp(event, [low, middle, high], relation)
    assert r[0] <= r[1] * (1 + TOLERANCE)
    assert r[1] <= r[2] * (1 + TOLERANCE)
    k = r * (np.array([low, middle, high]) - 1)
    chord = k[0] + (k[2] - k[0]) * (middle - low) / (high - low)
    assert k[1] <= chord * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_member_of_cut_cohorts_that_all_but_never_comes_costs_all_but_nothing(relation: str) -> None:
    for accountant in ("tight", "rdp"):
        for probability in (5e-324, 1e-320):
            event = TruncatedPoissonSampled(1.0, probability, 1, 100_000)
            assert 0 <= accounting.epsilon([(event, 1)], 1e-5, relation, accountant) < 1e-4


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_cohort_that_is_never_cut_is_a_poisson_cohort(relation: str) -> None:
    orders = (1.5, 2, 9.5)
    cut = rdp(TruncatedPoissonSampled(1.0, 0.1, 50, 50), orders, relation)
    assert cut == pytest.approx(rdp(PoissonSampled(1.0, 0.1), orders, relation), rel=1e-12)
    # Five of fifty are wanted: a limit of ten cuts a few cohorts, one of three most.
    some, most = (rdp(TruncatedPoissonSampled(1.0, 0.1, limit, 50), orders, relation) for limit in (10, 3))
    assert np.all(cut < some)
    assert np.all(some < most)


OPACUS_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))


@pytest.mark.parametrize("point", ACCOUNTING["opacus_poisson"]["points"])
def test_epsilons_of_poisson_sampling_are_those_of_opacus_and_lower_at_the_best_real_order(point: dict) -> None:
    event = PoissonSampled(point["z"], point["q"])
    curve = point["n"] * rdp(event, OPACUS_ORDERS, "add-or-remove-one")
    assert epsilon_from_rdp(OPACUS_ORDERS, curve, point["delta"]) == pytest.approx(point["opacus_rdp"], rel=1e-9)
    ours = rdp_epsilon([(event, point["n"])], point["delta"], "add-or-remove-one")
    assert ours <= point["opacus_rdp"] * (1 + 1e-9)


@pytest.mark.parametrize("point", ACCOUNTING["poisson_subsampled_gaussian"]["points"])  # fmt: skip
def test_epsilons_are_no_larger_than_the_peers_and_equal_where_its_orders_are_whole(point: dict) -> None:
    event = PoissonSampled(point["z"], point["q"])
    whole = list(range(2, 33))
    curve = point["n"] * rdp(event, whole, "add-or-remove-one")
    assert epsilon_from_rdp(whole, curve, point["delta"]) == pytest.approx(point["rdp_orders_2_32"], rel=1e-9, abs=1e-9)
    default = point["n"] * rdp(event, DEFAULT_ORDERS, "add-or-remove-one")
    assert epsilon_from_rdp(DEFAULT_ORDERS, default, point["delta"]) <= point["rdp_default_orders"] * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("point", ACCOUNTING["poisson_contour_reference"]["points"][::5])  # fmt: skip
def test_epsilon_and_delta_by_divergences_are_above_the_truth(point: dict) -> None:
    events = [(PoissonSampled(point["z"], point["q"]), point["n"])]
    ours = rdp_epsilon(events, point["delta"], "add-or-remove-one")
    assert ours >= point["eps_contour"]
    if ours > 0:
        assert rdp_delta(events, ours, "add-or-remove-one") == pytest.approx(point["delta"], rel=1e-4)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(z=st.floats(1e-3, 100), rounds=st.integers(1, 10**5), log_delta=st.floats(-300, -1), relation=st.sampled_from(RELATIONS))
def test_gaussians_cost_more_by_divergences_than_exactly_and_never_beyond_zcdp(z, rounds, log_delta, relation) -> None:
    delta = 10.0**log_delta
    factor = 2 if relation == "replace-one" else 1
    mu = factor * math.sqrt(rounds) / z
    exact = gaussian.epsilon(delta, 1 / mu)
    ours = rdp_epsilon([(Gaussian(z), rounds)], delta, relation)
    best = epsilon_from_zcdp(mu**2 / 2, delta)
    assert exact <= ours <= bun_steinke_epsilon_from_zcdp(mu**2 / 2, delta)
    # The search over real orders finds what the closed loop does.
    assert best * (1 - 1e-12) <= ours <= best * (1 + 1e-5) + 1e-12


def test_rounds_of_different_parameters_add_up() -> None:
    orders = (1.5, 4, 17.5)
    events = [(PoissonSampled(1.0, 0.01), 30), (PoissonSampled(0.8, 0.02), 10), (Gaussian(20.0), 2)]
    curve = sum(rounds * rdp(event, orders, "add-or-remove-one") for event, rounds in events)
    assert rdp_epsilon(events, 1e-6, "add-or-remove-one") <= epsilon_from_rdp(orders, curve, 1e-6)
    and_none = [*events, (PoissonSampled(1.0, 0.5), 0)]
    assert rdp_epsilon(and_none, 1e-6, "add-or-remove-one") == rdp_epsilon(events, 1e-6, "add-or-remove-one")
    assert rdp_epsilon([(PoissonSampled(z, 5e-324), 1) for z in (1.0, 1e12)], 1e-6, "add-or-remove-one") == 0
    assert (rdp_epsilon([], 1e-6, "zero-out"), rdp_delta([], 1.0, "zero-out")) == (0, 0)


def test_the_excess_over_one_neither_overflows_nor_cancels() -> None:
    y = np.array([0.0, 1e-300, 1e-9, 1.0, 29.99, 30.01, 1e5])
    with mpmath.workdps(60):
        expected = [float(mpmath.log(mpmath.expm1(mpmath.mpf(v)))) if v else -math.inf for v in y]
    assert log_expm1(y) == pytest.approx(expected, rel=1e-15)
