"""A thousand of each kind of hostile ciphertext and contribution: refused by the sender's name, nothing read, nothing told.

What cannot be seen under encryption is seen when the sum is opened, and then nobody can say whose it is.
"""

import ast
import inspect
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest

import hubbub.secagg
import refusals
from hubbub.secagg import packing, threshold
from hubbub.secagg.paillier import Ciphertext, PrivateKey, PublicKey
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey
from small_keys import SAFE, small

CASES = 1000
SECAGG = Path(hubbub.secagg.__file__).parent
# A number that would be recognised.
MARK = 31415926535897932384626433832795

PRIVATE = PrivateKey.from_primes(*SAFE)
HOLDERS, SHARES = threshold.deal(*SAFE, holders=3, threshold=2)
PUBLIC, N = HOLDERS.public_key, HOLDERS.n
GOOD = [int(c) for c in PUBLIC.encrypt([MARK, -MARK, MARK]).integers]
HONEST = {name: [int(c) for c in PUBLIC.encrypt([1, 2, 3, 4]).integers] for name in ("c1", "c2")}
TOLD = refusals.forms([*SAFE, small().p, small().q, MARK, *(share.secret for share in SHARES)])


def refusal(call: Callable[[], object]) -> str:
    return refusals.refusal(call, TOLD)


Draw = random.Random
KINDS: dict[str, tuple[Callable[[Draw], Any], str]] = {
    "zero": (lambda _: 0, "is 0"),
    "n and its multiples": (lambda draw: N * draw.choice([1, draw.randrange(1, N)]), "factor in common"),
    "n squared": (lambda _: N * N, r"is n\^2"),
    "beyond n squared": (lambda draw: N * N + draw.randrange(1, N ** draw.randrange(1, 5)), r"above n\^2"),
    "negative": (lambda draw: -draw.randrange(1, N ** draw.randrange(1, 4)), "is negative"),
    "a multiple of one prime": (lambda draw: draw.choice(SAFE) * draw.choice([1, draw.randrange(1, N)]), "factor in common"),
    "a float": (lambda draw: draw.choice([draw.random(), float("nan"), float("inf"), 2.0]), "is a float"),
    "text": (lambda draw: draw.choice([str(GOOD[0]), hex(GOOD[0]), "", "0", draw.randbytes(9).hex()]), "is a str"),
    "bytes": (lambda draw: draw.randbytes(draw.randrange(99)), "is a bytes"),
    "nothing": (lambda _: None, "is a NoneType"),
    "a truth value": (lambda draw: draw.choice([True, False]), "is a bool"),
    "a list within the list": (lambda draw: [GOOD[0]] * draw.randrange(4), "of different lengths|is a list"),
}


@pytest.mark.parametrize(("make", "message"), KINDS.values(), ids=KINDS.keys())
def test_pai_1_what_is_no_ciphertext_is_refused_by_the_name_of_the_client(make: Callable[[Draw], Any], message: str) -> None:
    """Wherever it lies in a vector, at the door of the server and at that of a holder of a share."""
    draw = random.Random(message)  # noqa: S311
    for _ in range(CASES):
        place = draw.randrange(4)
        vector = [*GOOD[:place], make(draw), *GOOD[place:]]
        for door in (
            lambda vector=vector: PUBLIC.ciphertext(vector, name="client 'c7'"),
            lambda vector=vector: SHARES[0].partial_of({**HONEST, "c7": vector}, at_least=3),
        ):
            said = refusal(door)
            assert said.startswith("client 'c7'")
            assert re.search(message, said), said


def test_pai_2_ciphertexts_under_another_key_are_refused_by_the_name_of_the_client() -> None:
    draw = random.Random(1)  # noqa: S311
    foreign = small().public_key.encrypt([MARK])
    for _ in range(CASES):
        others = [draw.randbytes(16).hex(), "", foreign.public_key.key_id, PUBLIC.key_id[:-1], PUBLIC.key_id.upper()]
        key_id = draw.choice(others)
        said = refusal(lambda key_id=key_id: PUBLIC.ciphertext(GOOD, key_id=key_id, name="client 'c7'"))
        assert said.startswith("client 'c7': encrypted under the key ")
    assert refusal(lambda: SHARES[0].partial_of({**HONEST, "c7": foreign})).startswith("client 'c7': encrypted under")
    assert "under the key" in refusal(lambda: PRIVATE.decrypt(foreign))


def test_pai_1_a_forged_ciphertext_object_is_not_decrypted() -> None:
    """One put together without the checks of arrival, in front of whoever has the whole key or a share."""
    draw = random.Random(2)  # noqa: S311
    for _ in range(CASES):
        bad = [gmpy2.mpz(draw.choice([0, N, N * N, draw.choice(SAFE) * draw.randrange(1, N)])), gmpy2.mpz(GOOD[0])]
        draw.shuffle(bad)
        forged = Ciphertext(PUBLIC, (2,), tuple(bad))
        assert "no ciphertext" in refusal(lambda forged=forged: PRIVATE.decrypt(forged))
        refusal(lambda forged=forged: SHARES[0].partial(forged))
        assert refusal(lambda forged=forged: SHARES[0].partial_of({"c7": forged})).startswith("client 'c7'")


def test_pai_7_nobody_hands_in_the_randomness_of_a_ciphertext() -> None:
    """It is drawn where it is used; only the textbook, for vectors and teaching, takes it."""
    forms: dict[str, list[str]] = {
        "PublicKey.encrypt": ["self", "values", "workers"],
        "ThresholdKey.encrypt": ["self", "values", "workers"],
        "Ciphertext.rerandomize": ["self"],
        "Agreement.contribution": ["self", "sender", "round_index", "steps", "noise"],
        "Agreement.noise": ["self", "sender", "round_index", "steps"],
    }
    known = {"PublicKey": PublicKey, "ThresholdKey": ThresholdKey, "Ciphertext": Ciphertext, "Agreement": Agreement}
    for name, wanted in forms.items():
        kind, _, method = name.partition(".")
        assert list(inspect.signature(getattr(known[kind], method)).parameters) == wanted
    assert not [
        file.name for file in SECAGG.parent.rglob("*.py") if re.search(r"import textbook|secagg\.textbook", file.read_text())
    ]
    # All randomisers are units of their own; c = ρ mod n for an encryption of 0 with c = ρ.
    drawn = [int(c) % N for c in PUBLIC.encrypt([0] * 300).integers]
    assert len(set(drawn)) == 300
    assert all(gmpy2.gcd(rho, N) == 1 for rho in drawn)


PLAN = packing.Packing(bits=16, clip=1.0, max_clients=16, key_bits=512)
LIMIT, WIDTH = PLAN.fixed_point.limit, PLAN.slot_bits
SIZE = 2 * PLAN.slots - 3


def contribution(draw: Draw) -> list[int]:
    generator = np.random.default_rng(draw.getrandbits(32))
    return PLAN.pack_steps(generator.integers(-LIMIT, LIMIT, SIZE, endpoint=True))


OTHERS = [PUBLIC.encrypt(contribution(Draw(i))) for i in range(10)]


def opened(parts: list[Ciphertext]) -> list[int]:
    """The sum of encrypted contributions, decrypted."""
    return PRIVATE.decrypt(sum(parts))


def test_pai_4_a_client_that_writes_beyond_its_slot_spoils_the_sum_and_nothing_of_it_is_read() -> None:
    draw = random.Random(3)  # noqa: S311
    for _ in range(CASES):
        count = draw.randrange(1, 5)
        hostile = contribution(draw)
        # Beyond what all together reach, in whichever direction, modulo the slot.
        beyond = draw.randrange(2 * count * LIMIT + 1, 2**WIDTH - 2 * count * LIMIT) + 2**WIDTH * draw.randrange(-3, 4)
        slot = draw.randrange(SIZE)
        hostile[slot // PLAN.slots] += beyond << (slot % PLAN.slots * WIDTH)
        total = opened([PUBLIC.encrypt(hostile), *draw.sample(OTHERS, count - 1)])
        said = refusal(lambda total=total, count=count: PLAN.unpack(total, contributions=count))
        assert "lies beyond what" in said or "no sum of" in said or "is not empty" in said or "of one size" in said


def test_pai_4_a_client_that_writes_into_the_slots_behind_the_last_is_seen() -> None:
    draw = random.Random(4)  # noqa: S311
    for _ in range(CASES):
        hostile = contribution(draw)
        slot = draw.randrange(PLAN.slots - 3, PLAN.slots)
        hostile[1] += draw.choice([1, -1]) * draw.randrange(1, LIMIT) << (slot * WIDTH)
        total = opened([PUBLIC.encrypt(hostile), draw.choice(OTHERS)])
        said = refusal(lambda total=total: PLAN.unpack(total, contributions=2))
        assert re.search(r"a slot behind the last of \d+ values is not empty", said)


def test_contributions_that_count_twice_or_not_at_all_are_seen() -> None:
    draw = random.Random(5)  # noqa: S311
    for _ in range(CASES):
        times = [draw.randrange(5) for _ in range(6)]
        expected = draw.choice([sent for sent in range(1, 17) if sent != sum(times)])
        total = opened([PUBLIC.encrypt([0, 0]), *(part * often for part, often in zip(OTHERS, times, strict=False))])
        said = refusal(lambda total=total, expected=expected: PLAN.unpack(total, contributions=expected))
        if 1 <= sum(times) <= 16:
            what = "fewer: one dropped out" if sum(times) < expected else "more: one is counted twice"
            assert said == f"contributions = {expected}: the plaintexts hold {sum(times)}, {what}"
        else:
            assert said == "plaintexts[0] is no sum of 1 to max_clients = 16 contributions"


@pytest.mark.parametrize(
    ("kind", "cases"),
    [("of random units", CASES), ("under another key", 50), pytest.param("under another key", CASES, marks=pytest.mark.slow)],
)
def test_pai_2_what_no_eye_tells_from_a_contribution_spoils_the_sum(kind: str, cases: int) -> None:
    """It decrypts to a random number: that it is a sum by chance has a probability below 2^-40, by fence, count and padding."""
    draw = random.Random(7)  # noqa: S311
    foreign = small().public_key
    for _ in range(cases):
        numbers = [draw.randrange(1, N * N) for _ in range(2)]
        if kind == "under another key":
            numbers = [int(c) % (N * N) for c in foreign.encrypt(contribution(draw)).integers]
        hostile = PUBLIC.ciphertext(numbers, name="client 'c7'")
        total = opened([*OTHERS[:2], hostile])
        refusal(lambda total=total: PLAN.unpack(total, contributions=3))


def test_no_message_is_made_of_a_secret() -> None:
    """Of what may be secret a message tells at most its type, its length and its place."""
    names = "coefficients d exponent half half_p half_q mask noise number order p phi plain prime q r secret steps value values"
    secret, seen = set(names.split()), 0
    for file in SECAGG.glob("*.py"):
        raised = [node.exc for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Raise) and node.exc]
        for part in (part for error in raised for part in ast.walk(error) if isinstance(part, ast.FormattedValue)):
            inner = part.value.args[0] if isinstance(part.value, ast.Call) and part.value.args else part.value
            told = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
            seen += 1
            # Of a plan the noise is public.
            assert told not in secret or ast.unparse(inner) == "self.noise", f"{file.name}: {ast.unparse(part.value)}"
    assert seen > 100
