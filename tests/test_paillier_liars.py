"""A thousand of each kind of lie that a holder of a share can tell: it is named, nothing is decrypted, no share is told."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gmpy2
import pytest

import untold
from hubbub.secagg import threshold
from hubbub.secagg.proofs import Proof, prove
from hubbub.secagg.threshold import Partial, _statement
from small_keys import SMALL_SAFE

CASES = 1000
Draw = random.Random
# Short numbers, and one proof at a time, so that a thousand take little time. Holder 2 lies.
KEY, KEYS = threshold.deal(*SMALL_SAFE, holders=4, threshold=1)
TOLD = untold.forms([*SMALL_SAFE, *(share.secret for share in KEYS)])


def refusal(call: Callable[[], object], *kinds: type[Exception]) -> str:
    return untold.refusal(call, TOLD, *kinds)


SUMS = KEY.encrypt([4, -2])
TRUE = KEYS[1].partial(SUMS)
N_SMALL, SQUARE = KEY.n, KEY.n**2


def self_proved(integers: tuple[int, ...], exponent: int) -> Partial:
    """False results with the best proof that a liar can make for them."""
    return replace(TRUE, integers=integers, proof=prove(_statement(KEY, 2, TRUE.ciphertexts, integers), exponent))


def moved(draw: Draw) -> tuple[int, ...]:
    """One result, multiplied by any unit but 1 and −1: a sign changes nothing."""
    results = list(TRUE.integers)
    place = draw.randrange(2)
    results[place] = results[place] * draw.randrange(2, SQUARE - 1) % SQUARE
    return tuple(results)


def replaced(draw: Draw, value: Any) -> Partial:
    results: list[Any] = list(TRUE.integers)
    results[draw.randrange(2)] = value
    return replace(TRUE, integers=tuple(results))


def other_secret(draw: Draw) -> Partial:
    secret = draw.randrange(1, SQUARE)
    results = tuple(int(gmpy2.powmod(c, 2 * KEY.delta * secret, SQUARE)) for c in TRUE.ciphertexts)
    return self_proved(results, KEY.delta * secret)


# Honest partial decryptions of other ciphertexts by holder 2, and of these by others.
ELSEWHERE = [KEYS[1].partial(KEY.encrypt([i, -i])) for i in range(100)]
BY_OTHERS = [KEYS[i].partial(SUMS) for i in (0, 2, 3) for _ in range(30)]


LIES: dict[str, Callable[[Draw], Partial]] = {
    "another holder's part": lambda draw: replace(draw.choice(BY_OTHERS), holder=2),
    "another share": other_secret,
    "another result": lambda draw: replace(TRUE, integers=moved(draw)),
    "another result, proved anew": lambda draw: self_proved(moved(draw), KEY.delta * KEYS[1].secret),
    "a result of other ciphertexts": lambda draw: replace(draw.choice(ELSEWHERE), ciphertexts=TRUE.ciphertexts),
    "a proof about other ciphertexts": lambda draw: replace(TRUE, proof=draw.choice(ELSEWHERE).proof),
    "zero, one, or no unit": lambda draw: replaced(
        draw, draw.choice([0, 1, N_SMALL, SMALL_SAFE[0] * draw.randrange(1, N_SMALL)])
    ),
    "out of range": lambda draw: replaced(draw, draw.choice([-1, 1]) * draw.randrange(SQUARE, SQUARE**2)),
    "no number": lambda draw: replaced(draw, draw.choice([None, 1.0, "1", b"1", True, [1]])),
    "too few or too many": lambda draw: replace(TRUE, integers=draw.choice([(), TRUE.integers[:1], TRUE.integers * 2])),
    "a response out of range": lambda draw: replace(
        TRUE,
        proof=Proof(
            TRUE.proof.challenge,
            draw.choice([-TRUE.proof.response, TRUE.proof.response + (1 << draw.randrange(840, 5000))]),
        ),
    ),
    "another response": lambda draw: replace(
        TRUE, proof=Proof(TRUE.proof.challenge, TRUE.proof.response ^ (1 << draw.randrange(800)))
    ),
    "another challenge": lambda draw: replace(
        TRUE, proof=Proof(TRUE.proof.challenge ^ (1 << draw.randrange(300)), TRUE.proof.response)
    ),
    "no proof": lambda draw: replace(
        TRUE, proof=draw.choice([None, 7, Proof(0, 0), Proof(1.0, 2.0), Proof("1", "2"), Proof(True, True)])
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_pai_12_a_holder_who_lies_is_named_and_nothing_is_decrypted(lie: Callable[[Draw], Partial]) -> None:
    draw = random.Random(8)  # noqa: S311
    for _ in range(CASES):
        said = refusal(lambda: threshold.combine(KEY, [lie(draw)], SUMS), threshold.LyingHolderError)
        assert said == "holder 2: not the partial decryption of these ciphertexts with the holder's share; combine without it"
    assert threshold.combine(KEY, [TRUE], SUMS) == [4, -2]


def test_the_sign_of_a_result_is_no_lie_as_nothing_depends_on_it() -> None:
    """Only squares are proved, and only squares are combined."""
    for signs in ((1, -1), (-1, 1), (-1, -1)):
        results = tuple(s * c % SQUARE for s, c in zip(signs, TRUE.integers, strict=True))
        turned = self_proved(results, KEY.delta * KEYS[1].secret)
        assert threshold.combine(KEY, [turned], SUMS) == [4, -2]
