"""Ciphertexts, contributions, requests to holders of the key and their answers, none of which is what it should be."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hubbub.secagg import packing, threshold
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.key_holder import Holder, combined
from hubbub.secagg.proofs import Proof
from hubbub.secagg.protocol import Agreement, Kind, Message
from hubbub.secagg.threshold import Partial
from malformed.base import Call, Case, Run, Word
from malformed.contents import flipped, sha256, some
from malformed.damages import nothing
from small_keys import SAFE, small

PUBLIC, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
N = PUBLIC.n
PLAN = packing.Packing(bits=16, clip=1.0, max_clients=4, key_bits=512)
SIZE = 2 * PLAN.slots - 3
AGREED = Agreement(PUBLIC.public_key, PLAN, SIZE, run="a run", server_noise=False)
OTHERS = (
    replace(AGREED, run="another run"),
    replace(AGREED, size=SIZE + 1),
    replace(AGREED, min_contributions=3),
    replace(AGREED, noising_holders=2),
    replace(AGREED, public_key=small().public_key),
    replace(AGREED, packing=replace(PLAN, clip=2.0)),
)
# 16 magic, 1 kind, 16 agreement, 8 round, 2 length of the name, 4 number of ciphertexts; the name; 32 of the digest at the end.
HEAD, DIGEST = 47, 32


def case(what: str, function: str, do: Callable[[], object], *words: Word) -> Case:
    return Case(what, (Call(function, do),), words, nothing)


@cache
def sent(name: str, round_index: int = 0, agreement: Agreement = AGREED) -> bytes:
    steps = np.random.default_rng(len(name)).integers(-30_000, 30_000, agreement.size)
    return agreement.contribution(name, round_index, steps)


@cache
def integers() -> tuple[int, ...]:
    return tuple(int(c) for c in PUBLIC.encrypt([5, -6, 7]).integers)


# What is no ciphertext, and what of it a message names.
NO_CIPHERTEXTS: dict[str, tuple[Any, Word]] = {
    "0": (0, "is 0"),
    "-1": (-1, "is negative"),
    "-5": (-5, "is negative"),
    "n": (N, "factor in common"),
    "7n": (7 * N, "factor in common"),
    "n²": (N**2, "is n^2"),
    "n² + 1": (N**2 + 1, "is above n^2"),
    "n³": (N**3, "is above n^2"),
    "−n": (-N, "is negative"),
    "p": (SAFE[0], "factor in common"),
    "q": (SAFE[1], "factor in common"),
    "p²": (SAFE[0] ** 2, "factor in common"),
    "31p": (31 * SAFE[0], "factor in common"),
    "2^2000": (2**2000, "is above n^2"),
    "a float": (2.0, "is a float"),
    "NaN": (float("nan"), "is a float"),
    "infinity": (float("inf"), "is a float"),
    "text": ("7", "is a str"),
    "bytes": (b"\7", "is a bytes"),
    "nothing": (None, "is a NoneType"),
    "a truth value": (True, "is a bool"),
    "a table": ({}, "dict"),
    "complex": (1j, "complex"),
    "control codes": ("\x1b[31m", "is a str"),
}


def ciphertexts(run: Run) -> Iterator[Case]:
    """At the door of the server, and at that of the holder of a share."""
    foreign = small().public_key.encrypt([1, 2, 3])
    for what, (odd, word) in NO_CIPHERTEXTS.items():
        for place in range(3):
            vector = [*integers()[:place], odd, *integers()[place:]]
            yield case(
                f"{what} at {place}",
                "ciphertext",
                lambda v=vector: PUBLIC.ciphertext(v, name="client 'c7'"),
                "client 'c7'",
                word,
            )
        vector = [odd, *integers()]
        contributions = {"c1": list(integers()), "c7": vector}
        yield case(f"{what} to a holder", "partial_of", lambda c=contributions: SHARES[0].partial_of(c), "client 'c7'", word)
        yield case(f"{what} as a sum", "partial", lambda v=vector: SHARES[0].partial(v, contributions=2), "sums", word)
    for key_id in ("", "0" * 32, PUBLIC.key_id, PUBLIC.public_key.key_id[:-1], foreign.public_key.key_id, "\x1b[31m"):
        yield case(
            f"under {key_id!r}",
            "ciphertext",
            lambda k=key_id: PUBLIC.ciphertext(integers(), key_id=k, name="client 'c7'"),
            "client 'c7'",
            "under the key",
        )
    yield case("of another key", "partial_of", lambda: SHARES[0].partial_of({"c1": integers(), "c7": foreign}), "client 'c7'")
    for what, odd in {"empty": [], "ragged": [[1], [2, 3]], "deep": [[[[2]], [[3, 4]]]]}.items():
        yield case(what, "partial_of", lambda v=odd: SHARES[0].partial_of({"c1": integers(), "c7": v}), "client 'c7'")
    for what, odd in {"the same twice": [integers()] * 2, "too few": [integers()], "nobody": []}.items():
        yield case(what, "partial_of", lambda v=odd: SHARES[0].partial_of(v), "contributions")


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The same message under another header, with its digest."""
    return replace(Message.from_bytes(data, 512, "a test", at_most=9), **changes).to_bytes(512)


def anew(data: bytes) -> bytes:
    """With the digest of what is in it now."""
    return data[:-DIGEST] + bytes.fromhex(sha256(data[:-DIGEST]))


def _messages() -> Iterator[tuple[str, object, Word]]:  # noqa: C901 # one kind after another
    """What somebody sends in place of a contribution of client c7."""
    whole = sent("c7")
    for cut in some(40, len(whole), seed=31):
        yield f"cut at {cut}", whole[:cut], "sent"
        yield f"without its first {cut} bytes", anew(whole[cut:]), "sent"
    for bit in some(80, 8 * len(whole), seed=32):
        yield f"bit {bit}", flipped(whole, bit), ("digest", "sent", "states")
    for bit in range(8 * (HEAD + 2)):
        yield f"bit {bit} of the header, with its digest", anew(flipped(whole, bit)), ("sent", "states", "another run")
    for more in (1, 32, 512, 10**6):
        yield f"{more} bytes more", whole + bytes(more), "bytes"
    for what, odd in {
        "nothing": None,
        "text": whole.hex(),
        "a list": [whole],
        "a bytearray": bytearray(whole),
        "a number": 7,
        "zeros": bytes(len(whole)),
        "noise": random.Random(3).randbytes(len(whole)),  # noqa: S311
        "empty": b"",
        "a table": {},
    }.items():
        yield what, odd, "sent"
    for number, agreement in enumerate(OTHERS):
        yield f"of agreement {number}", sent("c7", 0, agreement), "for another run, under another key, or packed in another way"
    for round_index in (1, 2, 10**9, 2**63):
        yield f"of round {round_index}", rewritten(whole, round_index=round_index), "this is round 1"
    for name in ("c1", "C7", " c7", "c7\0", "ｃ7", "server", "\x1b[31m", "x" * 200, "\n"):
        yield f"of sender {name[:9]!r}", rewritten(whole, sender=name), "sent the message of"
    for kind in (Kind.NOISE, Kind.SUM):
        yield f"of kind {kind}", rewritten(whole, kind=kind), "this is the place of a contribution"
    good = Message.from_bytes(whole, 512, "a test", at_most=9).integers
    for what, odds in {
        "0": [0],
        "n": [N],
        "7n": [7 * N],
        "p": [SAFE[0]],
        "no randomness": [1 + 5 * N],
        "1": [1],
        "the same twice": list(good[:1]),
        "of client c1": list(Message.from_bytes(sent("c1"), 512, "a test", at_most=9).integers[:1]),
    }.items():
        yield f"with {what}", rewritten(whole, integers=[*good[:1], *odds]), ("c7'[1]", "sent")
    yield "one ciphertext too few", rewritten(whole, integers=good[:1]), "1 ciphertexts"
    yield "none", rewritten(whole, integers=[]), "0 ciphertexts"
    yield "one too many", rewritten(whole, integers=[*good, 2]), "at most 2"


def contributions(run: Run) -> Iterator[Case]:
    server = Aggregator(AGREED, 0)
    server.add("c1", sent("c1"))
    for what, data, word in _messages():
        yield case(what, "add", lambda d=data: server.add("c7", d), "client 'c7'", word)
    for name in ("c1", "c2"):
        yield case(f"that of c7 from {name}", "add", lambda n=name: server.add(n, sent("c7")), f"client '{name}'")
    for sender in ("server", "holder 1", "c1"):
        yield case(f"noise of {sender}", "add_noise", lambda s=sender: server.add_noise(s, sent("c7")), sender)


def requests(run: Run) -> Iterator[Case]:
    """What a holder is asked to open."""
    holder = Holder(SHARES[0], AGREED)
    noised = Holder(SHARES[0], replace(AGREED, noising_holders=2))
    owner_terms = replace(AGREED, whole_key=True)
    both = (sent("c1"), sent("c22"))

    def asked(what: str, request: Request, *words: Word) -> Case:
        return case(what, "open", lambda: holder.open(request), "holder 1", *words)

    yield case("nothing", "open", lambda: holder.open(Request(0, (), ())), "round 1: 0 contributions came")
    yield case("one contribution", "open", lambda: holder.open(Request(0, both[:1], ())), "round 1: 1 contributions came")
    yield asked("one twice", Request(0, both[:1] * 2, ()), "already")
    yield asked("of another round", Request(1, both, ()), "this is round 2")
    yield asked("with noise", Request(0, both, (AGREED.noise("server", 0, np.zeros(SIZE, np.int64)),)), "noise")
    yield case("a sum in their place", "open", lambda: holder.open(Request(0, (), (), both[0])), "round 1: 0 contributions")
    yield asked("one under two names", Request(0, (both[0], rewritten(both[0], sender="c9")), ()), "there before")
    yield asked("more than agreed", Request(0, (*both, *(sent("c" * i) for i in (4, 5, 6))), ()), "room for 4")
    for what, data, _ in _messages():
        if isinstance(data, bytes) and what.partition(" ")[0] not in ("of", "that", "bit", "cut", "without"):
            yield asked(f"with one {what}", Request(0, (both[0], data), ()))
    for cut in some(30, len(both[1]), seed=33):
        yield asked(f"with one cut at {cut}", Request(0, (both[0], both[1][:cut]), ()), "a message of the sum")
    for bit in some(60, 8 * len(both[1]), seed=34):
        yield asked(f"with bit {bit} of one", Request(0, (both[0], flipped(both[1], bit)), ()), "a message of the sum")
    for count in range(4):
        rows = tuple(noised.agreement.noise(f"holder {i}", 0, np.zeros(SIZE, np.int64)) for i in range(2, 2 + count))
        given = tuple(sent(name, 0, noised.agreement) for name in ("c1", "c22"))
        request = Request(0, given, rows)
        yield case(f"{count} rows of others", "open", lambda r=request: noised.open(r), "noise of")
    for number, agreement in enumerate(OTHERS[:5]):
        yield case(
            f"a holder of agreement {number} asked for another",
            "open",
            lambda a=agreement, s=SHARES[1]: Holder(s, a).open(Request(0, both, ())),
            ("another run", "agreement", "noise"),
        )
    yield case("a share for a whole key", "Holder", lambda: Holder(SHARES[0], owner_terms), "whole key")
    weak = replace(AGREED, min_contributions=1)
    yield case("sums of one", "Holder", lambda: Holder(SHARES[0], weak), "sums of 1 contributions")


def answers(run: Run) -> Iterator[Case]:  # noqa: C901 # one kind after another
    """What holders answer: the sum is not read, and who lied is named."""
    server = Aggregator(AGREED, 0)
    for name in ("c1", "c22"):
        server.add(name, sent(name))
    true, second = (Holder(share, AGREED).open(server.request()) for share in SHARES[:2])
    assert isinstance(true, Partial)
    assert isinstance(second, Partial)

    def given(what: str, word: Word, *parts: object) -> Case:
        return case(what, "combined", lambda: combined(server, PUBLIC, parts), "round 1", word)  # type: ignore[arg-type]

    yield given("none", "too few")
    yield given("one", "too few", true)
    yield given("one twice", "more than once", true, true)
    yield given("no parts", "too few", true, (1, 2), None, 7)
    square = N**2
    for place in range(2):
        for odd in (
            0,
            1,
            N,
            SAFE[0],
            square - 1 - second.integers[place],
            second.integers[place] * 2 % square,
            -1,
            square,
            2**2000,
        ):
            results = list(second.integers)
            results[place] = odd
            yield given(f"{str(odd)[:9]} at {place}", "holder 2", true, replace(second, integers=tuple(results)))
        for odd in (None, 1.5, "7", b"7", True, [1]):
            results = [*second.integers]
            results[place] = odd  # type: ignore[call-overload]
            yield given(f"{odd!r} at {place}", "holder 2", true, replace(second, integers=tuple(results)))
    for what, numbers in {
        "fewer": second.integers[:1],
        "none": (),
        "more": (*second.integers, 5),
        "turned": second.integers[::-1],
    }.items():
        yield given(f"{what} results", "holder 2", true, replace(second, integers=numbers))
    proof = second.proof
    for bit in some(30, 250, seed=35):
        yield given(
            f"bit {bit} of the challenge",
            "holder 2",
            true,
            replace(second, proof=Proof(proof.challenge ^ 1 << bit, proof.response)),
        )
        yield given(
            f"bit {bit} of the response",
            "holder 2",
            true,
            replace(second, proof=Proof(proof.challenge, proof.response ^ 1 << bit)),
        )
    for odd in (Proof(0, 0), Proof(-1, -1), Proof(1, 1 << 10_000), None, 7, Proof("1", "2"), Proof(1.0, 2.0), true.proof):  # type: ignore[arg-type]
        yield given(f"proof {str(odd)[:20]}", "holder 2", true, replace(second, proof=odd))  # type: ignore[arg-type]
    yield given("of another holder", ("holder 2", "more than once", "too few"), replace(second, holder=3), true)
    for number in (0, 4, -1, 10**9, 1):
        yield given(f"of holder {number}", ("holder", "too few"), true, replace(second, holder=number))
    for key_id in ("", PUBLIC.public_key.key_id, "0" * 32):
        yield given(f"of the key {key_id[:5]!r}", "too few", true, replace(second, key_id=key_id))
    yield given("of other ciphertexts", "too few", true, replace(second, ciphertexts=second.ciphertexts[::-1]))
    yield given("of another shape", "too few", true, replace(second, shape=(1, 2)))
