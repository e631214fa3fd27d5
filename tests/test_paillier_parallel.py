"""Paillier at work in many places at once: processes, threads and randomness made ahead; and tables that cost less.

What comes out is what one process computes from fresh randomness, and no randomness is used twice.
"""

import copy
import hashlib
import math
import os
import pickle
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import oracle
from hubbub.secagg import ciphertext, paillier, randomizers, threshold
from hubbub.secagg.integers import in_threads
from hubbub.secagg.paillier import PrivateKey, PublicKey
from hubbub.secagg.proofs import _joined, holds, prove
from hubbub.secagg.threshold import _powers, _statement

VECTORS = oracle("paillier")
DEALT = VECTORS["threshold_dj"][0]


def number(text: str) -> int:
    return int(text, 16)


@cache
def small() -> PrivateKey:
    """512 bits, short exponents."""
    return PrivateKey.from_primes(number(VECTORS["raw"][0]["p"]), number(VECTORS["raw"][0]["q"]))


@cache
def textbook_form() -> PrivateKey:
    """Both primes 1 mod 4, so that short exponents do not fit."""
    found = [p for p in range(2**31 + 1, 2**31 + 400, 4) if gmpy2.is_prime(p)]
    return PrivateKey.from_primes(found[0], found[1])


def fresh(private: PrivateKey) -> PublicKey:
    """The public key without a table and without a stock."""
    return PublicKey(private.public_key.n, private.public_key.short_exponents)


KEYS = pytest.mark.parametrize("private", [small(), textbook_form()], ids=["short", "full"])


# Processes.


@KEYS
@pytest.mark.parametrize("count", [1, 2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 25))])
def test_processes_encrypt_the_same_numbers_in_the_same_order(private: PrivateKey, count: int) -> None:
    values = [[i, -i * i] for i in range(6)]
    c = fresh(private).encrypt(values, workers=count)
    assert c.shape == (6, 2)
    assert private.decrypt(c) == values


@KEYS
def test_no_randomness_is_in_two_processes_or_tasks(private: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that is copied gives two processes the same numbers: ciphertexts of zero would be equal."""
    monkeypatch.setattr(ciphertext, "_TASK", 20)
    public = fresh(private)
    made = [c for zeros in (public.encrypt([0] * 50), public.encrypt([0] * 300, workers=3)) for c in zeros.integers]
    assert len({c % public.n for c in made}) == 350


def test_processes_next_to_other_threads_draw_their_own() -> None:
    """A fork copies locks that other threads hold, and nobody ever opens them in the child."""
    release = threading.Event()
    other = threading.Thread(target=release.wait)
    other.start()
    try:
        public = fresh(small())
        c = public.encrypt([0] * 6, workers=2)
    finally:
        release.set()
        other.join()
    assert small().decrypt(c) == [0] * 6
    assert len({x % public.n for x in c.integers}) == 6


SCRIPT = """
import os, signal, sys, threading, time
from hubbub.secagg.paillier import PublicKey

if __name__ == "__main__":
    def children():
        return [int(pid) for pid in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()]

    def strike():
        # One of them is the tracker of Python's resources.
        while len(children()) < 3:
            time.sleep(0.01)
        if sys.argv[2] == "interrupt":
            print(*children(), flush=True)
            os.kill(os.getpid(), signal.SIGINT)
        elif sys.argv[2] == "die":
            print(*children(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            for pid in children():
                if b"spawn_main" in open(f"/proc/{pid}/cmdline", "rb").read():
                    os.kill(pid, signal.SIGKILL)

    threading.Thread(target=strike, daemon=True).start()
    PublicKey(int(sys.argv[1])).encrypt([1] * 100_000, workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("interrupt", "KeyboardInterrupt"),
        ("die", ""),
        (
            "kill",
            "RuntimeError: a process that encrypted a part of the numbers ended before its work did; do it in one, with work",
        ),
    ],
)
def test_no_process_is_left_and_none_that_dies_is_passed_over(what: str, said: str, tmp_path: Path) -> None:
    """Where the caller is interrupted or killed, its processes end; where one of them is killed, the caller is told."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(2**512 - 1), what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode != 0
    assert said in done.stderr
    deadline = time.monotonic() + 30
    while any(alive(int(pid)) for pid in done.stdout.split()):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_number_or_none_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ciphertext, "ProcessPoolExecutor", None)
    public = fresh(small())
    assert small().decrypt(public.encrypt([], workers=4)) == []
    assert small().decrypt(public.encrypt(5, workers=4)) == 5


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_number_of_workers_that_makes_no_sense_is_refused(count: int) -> None:
    _, shares = dealt()
    for use in (
        lambda: small().public_key.encrypt(1, workers=count),
        lambda: shares[0].public.encrypt(1, workers=count),
        lambda: shares[0].partial(shares[0].public.encrypt(1), workers=count),
    ):
        with pytest.raises(ValueError, match=f"workers = {count}: must be at"):
            use()


# Randomness made ahead.


@KEYS
def test_what_was_made_ahead_is_used_up_once_and_first(private: PrivateKey) -> None:
    public = fresh(private)
    public.precompute(7)
    public.precompute(3)
    kept = list(public._source._stock)
    assert public.precomputed == len(set(kept)) == 10
    c = public.encrypt([0] * 4)
    assert public.precomputed == 6
    assert set(c.integers) <= set(kept)
    more = public.encrypt([0] * 9)
    assert public.precomputed == 0
    assert set(more.integers) & set(kept) == set(kept) - set(c.integers)
    assert len({x % public.n for x in c.integers + more.integers}) == 13
    public.precompute(2)
    assert c.rerandomize().integers != c.integers
    assert public.precomputed == 0


def test_with_a_stock_an_encryption_makes_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    public = fresh(small())
    public.precompute(5)
    monkeypatch.setattr(public._source, "make", lambda count: [] if count == 0 else pytest.fail("a power was made"))
    assert small().decrypt(public.encrypt([1, 2, 3, 4, -5])) == [1, 2, 3, 4, -5]


def test_processes_get_nothing_of_the_stock() -> None:
    public = fresh(small())
    public.precompute(5)
    kept = set(public._source._stock)
    c = public.encrypt([0] * 25, workers=4)
    assert public.precomputed == 0
    assert set(c.integers[:5]) == kept
    assert len({x % public.n for x in c.integers}) == 25
    assert small().decrypt(c) == [0] * 25


def in_a_child(public: PublicKey, answer: Any) -> None:
    answer.send((public.precomputed, [int(c) for c in public.encrypt([0] * 6).integers], public.precomputed))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@KEYS
def test_a_forked_process_starts_without_a_stock_and_leaves_its_parents_alone(private: PrivateKey) -> None:
    public = fresh(private)
    public.precompute(6)
    here, there = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=in_a_child, args=(public, there), daemon=True)
    child.start()
    before, theirs, after = here.recv()
    child.join()
    assert (before, after, public.precomputed) == (0, 0, 6)
    ours = [int(c) for c in public.encrypt([0] * 6).integers]
    assert len({c % public.n for c in ours + theirs}) == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_does_not_wait_for_a_lock_of_its_parent() -> None:
    public = fresh(small())
    public.precompute(1)
    here, there = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=in_a_child, args=(public, there), daemon=True)
    with public._source._lock:
        child.start()
    assert here.poll(20), "the child waits"
    assert here.recv()[0] == 0
    child.join()


def test_threads_share_a_stock_and_each_number_in_it_is_given_out_once() -> None:
    public = fresh(small())
    public.precompute(300)

    def take(_: int) -> list[Any]:
        if secrets.randbelow(4) == 0:
            public.precompute(2)
        return list(public.encrypt([0] * 3).integers)

    with ThreadPoolExecutor(8) as pool:
        made = [c for part in pool.map(take, range(150)) for c in part]
    assert len({c % public.n for c in made}) == 450


def test_a_stock_is_in_no_pickle_copy_or_text() -> None:
    public = fresh(small())
    public.precompute(3)
    kept = public._source._stock
    data = pickle.dumps(public)
    for rho in kept:
        assert int(rho).to_bytes(128, "little").strip(b"\0") not in data
        assert str(int(rho)) not in repr(public)
    for other in (pickle.loads(data), copy.copy(public), copy.deepcopy(public)):  # noqa: S301
        assert other == public
        assert other.precomputed == 0
    for copies in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled or copied"):
            copies(public._source)
    assert public.precomputed == 3


def test_making_ahead_writes_nothing_to_disk(tmp_path: Any) -> None:
    script = (
        "import sys\n"
        "from hubbub.secagg.paillier import PublicKey\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: opened.append(args) if event == 'open' else None)\n"
        f"public = PublicKey({small().public_key.n}, True)\n"
        "public.precompute(50)\n"
        "public.encrypt([1] * 20)\n"
        "print([args for args in opened if args[1] not in ('r', 'rb')])\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert told.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_stock_of_no_size_is_refused(count: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="count = "):
        fresh(small()).precompute(count)


# Tables.


@settings(max_examples=40, deadline=None)
@given(
    exponent_bits=st.integers(1, 80),
    window=st.integers(1, 8),
    passes=st.integers(1, 90),
    n=st.sampled_from([15, 10**12 + 39, 2**61 - 1, 3**40]),
    square=st.booleans(),
    data=st.data(),
)
def test_tables_of_every_shape_give_powers(
    exponent_bits: int, window: int, passes: int, n: int, square: bool, data: st.DataObject
) -> None:
    modulus = n * n if square else n
    base = data.draw(st.integers(1, modulus - 1).filter(lambda x: gmpy2.gcd(x, n) == 1))
    table = randomizers.Table(gmpy2.mpz(base), gmpy2.mpz(modulus), exponent_bits, window, passes)
    for exponent in {0, 1, 2**exponent_bits - 1, data.draw(st.integers(0, 2**exponent_bits - 1))}:
        assert table.power(exponent) == pow(base, exponent, modulus)


@pytest.mark.parametrize(("window", "passes"), [(1, 1), (2, 2), (3, 2), (4, 1), (6, 3), (5, 8)])
def test_random_powers_of_every_shape_reach_each_exponent_equally_often(window: int, passes: int) -> None:
    """Of 64 exponents, 6,400 uniform draws: chi-square with 63 degrees is above 150 with probability below 1e-8."""
    n = 2**61 - 1
    table = randomizers.Table(gmpy2.mpz(3), gmpy2.mpz(n) ** 2, 6, window, passes)
    place = {pow(3, a, n * n): a for a in range(64)}
    drawn = [0] * 64
    for power in table.random_powers(6400):
        drawn[place[int(power)]] += 1
    assert sum((count - 100) ** 2 / 100 for count in drawn) < 150


def test_more_powers_are_worth_larger_tables_which_hold_at_most_half_of_all_powers() -> None:
    for exponent_bits in (256, 1024, 1536, 2048):
        shapes = []
        for powers in (2, 10, 215, 2000, 12_000, 10**6, 10**9):
            window = randomizers.best_window(powers, exponent_bits, 4 * exponent_bits)
            passes = randomizers.best_passes(powers, exponent_bits, window)
            blocks = math.ceil(math.ceil(exponent_bits / window) / passes)
            shapes.append(blocks * 2**window)
            assert shapes[-1] * exponent_bits // 2 <= (randomizers.LARGEST_TABLE + 2**window * exponent_bits // 2) // 2
        assert all(a <= b for a, b in pairwise(shapes))


def test_a_table_is_only_replaced_by_a_larger_one() -> None:
    public = fresh(small())
    sizes = []
    for count in (1, 3, 20, 5, 300, 1, 4000, 2):
        table = public._source.prepare(count)[1]
        sizes.append(len(table) if table else 0)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) >= 4
    often = fresh(small())
    for _ in range(300):
        often.encrypt(0)
    assert len(often._source.prepare(1)[1]) == len(fresh(small())._source.prepare(301)[1])
    assert small().decrypt(public.encrypt([7, -7])) == [7, -7]


# Holders of shares.


@cache
def dealt() -> tuple[threshold.ThresholdKey, tuple[threshold.KeyShare, ...]]:
    return threshold.deal(number(DEALT["p"]), number(DEALT["q"]), holders=4, threshold=2)


@settings(max_examples=20, deadline=None)
@given(exponent=st.one_of(st.integers(0, 2**1100), st.sampled_from([1, number(DEALT["n"]), number(DEALT["n"]) ** 2 - 1])))
def test_a_holders_power_is_the_power_by_definition(exponent: int) -> None:
    n = gmpy2.mpz(number(DEALT["n"]))
    units = [gmpy2.mpz(secrets.randbelow(int(n * n))) for _ in range(2)]
    assert _powers(units, exponent, n) == [pow(int(c), exponent, int(n) ** 2) for c in units]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_threads_make_the_same_parts_in_the_same_order(count: int) -> None:
    public, shares = dealt()
    values = list(range(-4, 5))
    sums = public.encrypt(values, workers=2) + 0
    parts = [share.partial(sums, workers=count) for share in shares[1:3]]
    assert parts[0].integers == shares[1].partial(sums).integers
    assert threshold.combine(public, parts, sums) == values
    given = [public.encrypt(values), public.encrypt([1] * 9)]
    formed = [share.partial_of(given, workers=count) for share in shares[:2]]
    assert threshold.combine(public, formed) == [v + 1 for v in values]


def test_gmp_lets_other_threads_run_where_work_is_shared_and_nowhere_else() -> None:
    def released(part: list[int]) -> list[bool]:
        return [gmpy2.get_context().allow_release_gil for _ in part]

    assert in_threads(released, [1, 2, 3], 3) == [True] * 3
    assert in_threads(released, [1, 2, 3], 1) == [False] * 3


@settings(max_examples=12, deadline=None)
@given(count=st.integers(1, 40), seed=st.binary(min_size=32, max_size=32))
def test_a_product_of_weighted_powers_is_that_by_definition(count: int, seed: bytes) -> None:
    modulus = number(DEALT["n"]) ** 2
    units = [secrets.randbelow(modulus) for _ in range(count)]
    weights = hashlib.shake_256(b"weights" + seed).digest(16 * count)
    expected = 1
    for i, unit in enumerate(units):
        expected = expected * pow(unit, int.from_bytes(weights[16 * i : 16 * i + 16], "big"), modulus) % modulus
    assert _joined(units, seed, gmpy2.mpz(modulus)) == expected


def test_a_result_that_is_no_unit_is_no_result() -> None:
    public, shares = dealt()
    sums = public.encrypt([1, 2, 3])
    good = shares[0].partial(sums)
    for wrong in (0, public.n, number(DEALT["p"]), public.n**2, -5):
        forged = threshold.Partial(good.key_id, 1, good.shape, good.ciphertexts, (*good.integers[:2], wrong), good.proof)
        with pytest.raises(threshold.LyingHolderError, match="holder 1"):
            threshold.combine(public, [forged, shares[1].partial(sums)])


def test_a_result_beyond_the_modulus_is_none_even_when_it_is_proved() -> None:
    public, shares = dealt()
    good = shares[0].partial(public.encrypt([1, 2]))
    exponent = public.delta * shares[0].secret
    for more, stands in ((0, True), (public.n**2, False)):
        results = (good.integers[0], good.integers[1] + more)
        statement = _statement(public, 1, good.ciphertexts, results)
        assert holds(statement, prove(statement, exponent)) == stands


# Sums.


def test_a_sum_of_many_clients_is_a_running_product_of_one_vector() -> None:
    private = small()
    public = private.public_key
    size = 40

    def arriving() -> Any:
        for client in range(30):
            yield public.encrypt([client, -client] * (size // 2))

    total: Any = 0
    for contribution in arriving():
        total = total + contribution
        assert len(total.integers) == size
        assert all(c < public.n_square for c in total.integers)
    assert private.decrypt(total) == [435, -435] * (size // 2)
    assert private.decrypt(sum(arriving())) == [435, -435] * (size // 2)


def test_decryption_by_threads_refuses_what_one_thread_refuses() -> None:
    private = small()
    good = private.public_key.encrypt(1).integers[0]
    forged = paillier.Ciphertext(private.public_key, (3,), (good, good, gmpy2.mpz(private.p)))
    for threads in (1, 2, 3):
        with pytest.raises(ValueError, match="integer 2 in C order"):
            private.decrypt(forged, threads=threads)
