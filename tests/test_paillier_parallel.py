"""Encryption in several processes, and decryption in several threads: the same numbers, and no randomness is used twice."""

import hashlib
import secrets
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import gmpy2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.secagg import threshold
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.proofs import _joined, holds, prove
from hubbub.secagg.threshold import _powers, _statement
from reaper import alive
from small_keys import SAFE, plain, small

N = SAFE[0] * SAFE[1]


KEYS = pytest.mark.parametrize("private", [small(), plain()], ids=["short", "full"])


@KEYS
@pytest.mark.parametrize("count", [1, 2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 25))])
def test_processes_encrypt_the_same_numbers_in_the_same_order(private: PrivateKey, count: int) -> None:
    values = [[i, -i * i] for i in range(6)]
    c = private.public_key.encrypt(values, workers=count)
    assert (c.shape, private.decrypt(c)) == ((6, 2), values)


@KEYS
def test_no_randomness_is_in_two_processes_or_tasks(private: PrivateKey) -> None:
    """A generator that is copied gives two processes the same numbers: ciphertexts of zero would be equal."""
    public = private.public_key
    made = [c for zeros in (public.encrypt([0] * 50), public.encrypt([0] * 300, workers=3)) for c in zeros.integers]
    assert len({c % public.n for c in made}) == 350


SCRIPT = """
import os, signal, sys, threading, time
from hubbub.secagg.paillier import PublicKey

if __name__ == "__main__":
    def children():
        pids = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
        return [int(pid) for pid in pids if b"spawn_main" in open(f"/proc/{pid}/cmdline", "rb").read()]

    def strike():
        while len(children()) < 2:
            time.sleep(0.01)
        if sys.argv[2] == "kill":
            for pid in children():
                os.kill(pid, signal.SIGKILL)
        else:
            print(*children(), flush=True)
            os.kill(os.getpid(), signal.SIGINT if sys.argv[2] == "interrupt" else signal.SIGKILL)

    threading.Thread(target=strike, daemon=True).start()
    PublicKey(int(sys.argv[1])).encrypt([1] * 100_000, workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("interrupt", "KeyboardInterrupt"),
        ("die", ""),
        ("kill", "RuntimeError: a process that encrypted a part of the numbers ended before its work did; do it in one, "),
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


@cache
def dealt() -> tuple[threshold.ThresholdKey, tuple[threshold.KeyShare, ...]]:
    return threshold.deal(*SAFE, holders=4, threshold=2)


@settings(max_examples=20, deadline=None)
@given(exponent=st.one_of(st.integers(0, 2**1100), st.sampled_from([1, N, N**2 - 1])))
def test_a_holders_power_is_the_power_by_definition(exponent: int) -> None:
    n = gmpy2.mpz(N)
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


@settings(max_examples=12, deadline=None)
@given(count=st.integers(1, 40), seed=st.binary(min_size=32, max_size=32))
def test_a_product_of_weighted_powers_is_that_by_definition(count: int, seed: bytes) -> None:
    modulus = N**2
    units = [secrets.randbelow(modulus) for _ in range(count)]
    weights = hashlib.shake_256(b"weights" + seed).digest(16 * count)
    expected = 1
    for i, unit in enumerate(units):
        expected = expected * pow(unit, int.from_bytes(weights[16 * i : 16 * i + 16], "big"), modulus) % modulus
    assert _joined(units, seed, gmpy2.mpz(modulus)) == expected


def test_a_result_beyond_the_modulus_is_none_even_when_it_is_proved() -> None:
    public, shares = dealt()
    good = shares[0].partial(public.encrypt([1, 2]))
    exponent = public.delta * shares[0].secret
    for more, stands in ((0, True), (public.n**2, False)):
        results = (good.integers[0], good.integers[1] + more)
        statement = _statement(public, 1, good.ciphertexts, results)
        assert holds(statement, prove(statement, exponent)) == stands
