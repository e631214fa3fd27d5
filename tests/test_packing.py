"""Fixed-point numbers in slots: what a sum of plaintexts says, and when it is refused.

Expected values: the reference values of the oracle file, Python integers by definition, and laws.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.secagg import packing
from hubbub.secagg.packing import joined, taken_apart

ORACLE = oracle("paillier")["packing"]
PLAN = packing.Packing(bits=8, clip=1.0, max_clients=4, key_bits=256)


def added(*contributions):
    return [sum(column) for column in zip(*contributions, strict=True)]


@st.composite
def plans(draw):
    return packing.Packing(
        bits=draw(st.integers(2, 32)),
        clip=draw(st.floats(1e-6, 1e6)),
        max_clients=draw(st.integers(1, 200)),
        key_bits=draw(st.sampled_from([200, 512, 1024, 2048])),
        noise=draw(st.sampled_from([0, 1, 1000, 10**9])),
    )


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: str(case["key_bits"]))
def test_quantised_values_sums_and_means_are_those_of_the_reference(case):
    plan = packing.Packing(case["value_bits"], float(case["clip"]), case["max_clients"], case["key_bits"])
    assert (plan.slot_bits, plan.guard_bits, plan.step) == (case["slot_bits"], case["guard_bits"], float(case["step"]))
    packed = []
    for client in case["clients"]:
        values = [float(x) for x in client["values"]]
        assert plan.fixed_point.encode(values).tolist() == client["quantised"]
        packed.append(plan.pack(values))
    total = added(*packed)
    assert plan.contributions(total) == len(case["clients"])
    assert plan.unpack_steps(total).tolist() == case["sums"]
    mean = plan.unpack(total, contributions=len(case["clients"])) / len(case["clients"])
    np.testing.assert_allclose(mean, [float(x) for x in case["mean"]], rtol=1e-14)


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: str(case["key_bits"]))
def test_slots_are_laid_out_as_in_the_reference(case):
    n, w, k = int(case["n"], 16), case["slot_bits"], case["slots"]
    for client in case["clients"]:
        whole = joined(np.array(client["quantised"]), w, k)
        assert [number % n for number in whole] == [int(p, 16) for p in client["plaintexts"]]
    lifted = [(int(p, 16) + int(case["bias"], 16)) % n for p in case["aggregate_plaintexts"]]
    assert taken_apart(lifted, w, k)[: len(case["sums"])].tolist() == case["sums"]


def test_a_plaintext_is_the_sum_of_its_slots_by_definition():
    values = [1.0, -1.0, 0.25, -0.5]
    steps = [127, -127, 32, -64]  # 31.75 and -63.5, to the nearest, ties to even
    (whole,) = PLAN.pack(values)
    low = sum(q << (PLAN.slot_bits * j) for j, q in enumerate(steps))
    above, rest = divmod(whole - low, 1 << (PLAN.slot_bits * PLAN.slots))
    assert rest == 0
    assert above & 0xFF == 0  # the fence
    assert (above >> 8) & (2**11 - 1) == 1  # one contribution, in the 3 bits of 4 and 8 more
    assert above >> 19 == PLAN.slots - 4


@settings(max_examples=60, deadline=None)
@given(plans(), st.data())
def test_what_is_packed_comes_back_within_the_stated_error(plan, data):
    clip = plan.clip
    size = data.draw(st.integers(1, 3 * plan.slots))
    clients = data.draw(st.integers(1, min(plan.max_clients, 5)))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = generator.uniform(-clip, clip, (clients, size))
    values[generator.random(values.shape) < 0.2] = clip
    values[generator.random(values.shape) < 0.2] = -clip
    total = added(*[plan.pack(row) for row in values])
    assert (len(total), plan.contributions(total)) == (plan.plaintexts(size), clients)
    sums = plan.unpack(total, contributions=clients)
    assert sums.shape == (size,)
    for j in range(size):
        exact = sum(Fraction(float(x)) for x in values[:, j])
        assert abs(Fraction(float(sums[j])) - exact) <= clients * Fraction(plan.error_bound)
    assert plan.error_bound <= plan.step * 0.500003


@settings(max_examples=60, deadline=None)
@given(plans(), st.booleans(), st.data())
def test_as_many_clients_as_promised_fit_at_the_limit_and_one_more_is_refused(plan, negative, data):
    size = data.draw(st.integers(1, 2 * plan.slots))
    one = plan.pack(np.full(size, -plan.clip if negative else plan.clip))
    full = [number * plan.max_clients for number in one]
    limit = plan.fixed_point.limit * plan.max_clients
    assert plan.unpack_steps(full, plan.max_clients).tolist() == [-limit if negative else limit] * size
    assert all(0 <= number < 2 ** (plan.key_bits - 3) for number in full)
    for more in (1, plan.max_clients, 7 * plan.max_clients, 200 * plan.max_clients):
        with pytest.raises(ValueError, match="no sum of 1 to max_clients"):
            plan.unpack(added(full, [number * more for number in one]))


def test_the_noise_reserved_fits_at_the_limit():
    plan = packing.Packing(bits=8, clip=1.0, max_clients=4, key_bits=256, noise=1000)
    full = [number * 4 for number in plan.pack([-1.0, 1.0])]
    noisy = added(full, plan.pack_noise([-1000, 1000]))
    assert plan.unpack_steps(noisy, 4).tolist() == [-4 * 127 - 1000, 4 * 127 + 1000]
    shares = added(*[plan.pack([-1.0, 1.0], noise=[-250, 250]) for _ in range(4)])
    assert shares == noisy
    with pytest.raises(ValueError, match="noise exceeds 1000 steps"):
        plan.pack_noise([0, -1001])
    with pytest.raises(ValueError, match="noise exceeds 250 steps"):
        plan.pack([0.0], noise=[251])
    with pytest.raises(ValueError, match="must be one for each of 2 values"):
        plan.pack([0.0, 0.0], noise=[1])
    with pytest.raises(TypeError, match="whole numbers of steps"):
        plan.pack([0.0], noise=[0.5])


def test_plaintexts_that_are_doubled_missing_in_part_out_of_order_or_of_another_size_show():
    one, two = PLAN.pack(np.zeros(2 * PLAN.slots))
    for wrong, words in (
        ([2 * one, two], r"plaintexts\[0\] holds 2 contributions, the last one 1"),
        ([one, 0], "no sum of 1 to max_clients"),
        (PLAN.pack(np.zeros(PLAN.slots + 1))[::-1], "not in order"),
        (added(PLAN.pack([0.0]), PLAN.pack([0.0, 0.0])), "of one size"),
    ):
        with pytest.raises(ValueError, match=words):
            PLAN.unpack(wrong)


def test_pai_4_slots_beyond_what_honest_clients_reach_are_refused():
    total = PLAN.pack([1.0, 0.0])
    total[0] += 1
    with pytest.raises(ValueError, match="slot 0 lies beyond what 1 clipped values reach"):
        PLAN.unpack(total)
    total = PLAN.pack([1.0, 0.0])
    total[0] += 1 << (2 * PLAN.slot_bits)
    with pytest.raises(ValueError, match="a slot behind the last of 2 values is not empty"):
        PLAN.unpack(total)


@settings(max_examples=300, deadline=None)
@given(st.integers(-(2**300), 2**300))
def test_any_number_is_either_refused_or_one_that_clients_could_have_sent(number):
    try:
        steps = PLAN.unpack_steps([number])
    except ValueError:
        return
    count = PLAN.contributions([number])
    assert 1 <= count <= PLAN.max_clients
    assert np.all(np.abs(steps) <= count * 127)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pai_5_values_that_are_not_finite_are_refused_by_their_place(bad):
    with pytest.raises(ValueError, match=r"values\[2\] is NaN or infinite: must be finite \(1 of 3 are not\)"):
        PLAN.pack([0.0, 0.0, bad])


@pytest.mark.parametrize("bad", [["a"], [True], [1j], [None]])
def test_pai_5_values_that_are_no_real_numbers_are_refused(bad):
    with pytest.raises(TypeError, match="must be real numbers"):
        PLAN.pack(bad)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"bits": 1}, "bits = 1: must be at least 2"),
        ({"bits": 33}, "bits = 33: must be at most 32"),
        ({"bits": 16.0}, "must be a whole number"),
        ({"clip": 0.0}, "clip = 0.0: must be above 0"),
        ({"clip": float("nan")}, "clip = nan: must be finite"),
        ({"max_clients": 0}, "max_clients = 0: must be at least 1"),
        ({"max_clients": 2**20 + 1}, "max_clients"),
        ({"noise": -1}, "noise = -1: must be at least 0"),
        ({"noise": 2**53}, "a sum may exceed"),
        ({"noise": 10**5000}, "a sum may exceed"),
        ({"key_bits": 64, "bits": 32, "max_clients": 2**20}, "not one slot of 52 bits fits next to the counter"),
    ],
)
def test_pai_3_a_plan_in_which_sums_could_overflow_is_refused_when_it_is_made(settings_, message):
    with pytest.raises((ValueError, TypeError), match=message):
        packing.Packing(**settings_)
