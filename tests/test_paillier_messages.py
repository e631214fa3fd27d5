"""A thousand of each kind of hostile message: the sender is named, the sum stays as it was, and the honest ones are still read.

The digest in a message is no signature. Whoever writes messages makes it anew, and so do these tests.
"""

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import refusals
from hubbub.errors import SumNotOpenedError
from hubbub.secagg import packing, threshold
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Holder, combined
from hubbub.secagg.protocol import Agreement, Kind, Message, width
from small_keys import SAFE, small

CASES = 1000
Draw = random.Random
PUBLIC, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=2)
N = PUBLIC.n
PLAN = packing.Packing(bits=16, clip=1.0, max_clients=16, key_bits=512)
SIZE = 2 * PLAN.slots - 3
AGREED = Agreement(PUBLIC.public_key, PLAN, SIZE, run="a run", min_contributions=2)
LARGEST = 2**15 - 1
TOLD = refusals.forms([*SAFE, *(share.secret for share in SHARES)])
# 16 magic, 1 kind, 16 agreement, 8 round, 2 length of the name, 4 number of ciphertexts; then the name.
HEAD, DIGEST = 47, 32


def refusal(call: Callable[[], object], *kinds: type[Exception]) -> str:
    return refusals.refusal(call, TOLD, *(kinds or (ValueError,)))


def steps(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-LARGEST, LARGEST, SIZE, endpoint=True)


@cache
def sent(name: str, round_index: int = 0, seed: int = 0) -> bytes:
    return AGREED.contribution(name, round_index, steps(seed))


def signed_anew(data: bytes) -> bytes:
    """With the digest of what is in it now."""
    return data[:-DIGEST] + hashlib.sha256(data[:-DIGEST]).digest()


def parsed(data: bytes) -> Message:
    return Message.from_bytes(data, 512, "a test", at_most=AGREED.ciphertexts)


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The same ciphertexts, or others, under another header."""
    return replace(parsed(data), **changes).to_bytes(512)


class Server:
    """An aggregator that has two contributions, and what they are."""

    def __init__(self, agreement: Agreement = AGREED) -> None:
        self.sum = Aggregator(agreement, 0)
        self.sum.add("c1", sent("c1", 0, 1))
        self.sum.add("c2", sent("c2", 0, 2))
        self.before = self.sum.total.integers

    def refuses(self, data: object, sender: str = "c7") -> str:
        said = refusal(lambda: self.sum.add(sender, data))
        assert said.startswith((f"client '{sender}': ", f"client '{sender}'["))
        assert (self.sum.senders, self.sum.total.integers) == (("c1", "c2"), self.before)
        return said


@pytest.fixture
def server() -> Iterator[Server]:
    """What it refuses takes nobody's place: the honest message of the same client is taken after it, and the sum is right."""
    server = Server()
    yield server
    server.sum.add("c7", sent("c7", 0, 7))
    opened = [Holder(share, AGREED).open(server.sum.request()) for share in SHARES[1:]]
    total, liars = combined(server.sum, PUBLIC, opened)
    assert (liars, total.tolist()) == ((), (steps(1) + steps(2) + steps(7)).tolist())


def test_messages_that_were_cut_off_or_grew_are_refused(server: Server) -> None:
    draw, whole = Draw(0), sent("c7", 0, 7)
    for case in range(CASES):
        part = whole[: draw.randrange(1, len(whole))] if case % 2 else whole[draw.randrange(1, len(whole)) :]
        for hostile in (part, signed_anew(part), whole + draw.randbytes(draw.randrange(1, 300)), part + whole):
            server.refuses(hostile)


def test_pai_9_messages_of_which_a_bit_was_changed_are_refused(server: Server) -> None:
    draw, whole = Draw(1), sent("c7", 0, 7)
    for _ in range(CASES):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2, 10])):
            damaged[draw.randrange(len(whole))] ^= draw.randrange(1, 256)
        server.refuses(bytes(damaged))


def test_pai_9_no_bit_of_the_header_can_be_changed_even_with_a_new_digest(server: Server) -> None:
    whole = sent("c7", 0, 7)
    for bit in range(8 * (HEAD + len("c7"))):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << (bit % 8)
        server.refuses(signed_anew(bytes(changed)))


def test_pai_9_a_number_added_on_the_way_is_seen(server: Server) -> None:
    """Whoever multiplies a ciphertext by (1 + n)^Δ adds Δ to what it hides."""
    draw, whole = Draw(9), sent("c7", 0, 7)
    message = parsed(whole)
    for _ in range(CASES // 10):
        added = draw.randrange(1, N)
        place = draw.randrange(len(message.integers))
        integers = [int(c) for c in message.integers]
        integers[place] = integers[place] * (1 + N * added) % N**2
        size = width(512)
        start = HEAD + len("c7") + place * size
        server.refuses(whole[:start] + integers[place].to_bytes(size, "little") + whole[start + size :])


def test_pai_9_what_a_forger_adds_under_a_new_digest_is_no_more_than_a_client_could_have_sent() -> None:
    """Senders are the channel's to know. Who writes there adds within the slots, or the sum is not read."""
    for added, readable in ((1, True), (2**14, True), (-1, True), (2**18, False), (2**18 << 2 * PLAN.slot_bits, False)):
        server, message = Server(), parsed(sent("c7", 0, 7))
        integers = [int(c) for c in message.integers]
        integers[0] = integers[0] * (1 + N * (added % N)) % N**2
        server.sum.add("c7", replace(message, integers=integers).to_bytes(512))
        opened = [Holder(share, AGREED).open(server.sum.request()) for share in SHARES[1:]]
        if readable:
            total, _ = combined(server.sum, PUBLIC, opened)
            assert (np.abs(total) <= 3 * LARGEST).all()
            assert int(total[0]) == int(steps(1)[0] + steps(2)[0] + steps(7)[0]) + added
        else:
            refusal(lambda server=server, opened=opened: combined(server.sum, PUBLIC, opened), SumNotOpenedError)


def test_what_is_no_bytes_is_refused(server: Server) -> None:
    draw, whole = Draw(3), sent("c7", 0, 7)
    for _ in range(CASES):
        server.refuses(
            draw.choice([None, whole.hex(), bytearray(whole), memoryview(whole), [whole], 7, draw.random(), True, {}])
        )


def test_pai_8_messages_of_another_round_are_refused(server: Server) -> None:
    draw = Draw(4)
    old = sent("c7", 3, 7)
    assert "sent a message of round 4, this is round 1" in server.refuses(old)
    for _ in range(CASES):
        server.refuses(rewritten(old, round_index=draw.choice([draw.randrange(1, 9), draw.randrange(1, 2**63)])))


PACKINGS = [replace(PLAN, **change) for change in ({"bits": 15}, {"clip": 2.0}, {"max_clients": 3}, {"noise": 1})]
OTHERS: list[dict[str, Any]] = [{"run": "another run"}, {"min_contributions": 3}, {"noising_holders": 1}, {"size": SIZE + 1}]
OTHERS += [{"public_key": small().public_key}, *({"packing": other} for other in PACKINGS)]


@pytest.mark.parametrize("agreement", [replace(AGREED, **change) for change in OTHERS])
def test_pai_2_messages_of_another_run_key_or_packing_are_refused(agreement: Agreement, server: Server) -> None:
    draw = Draw(5)
    for _ in range(CASES // 9 + 1):
        numbers = np.array([draw.randrange(-(2**14) + 1, 2**14) for _ in range(agreement.size)], dtype=np.int64)
        said = server.refuses(agreement.contribution("c7", 0, numbers))
        assert "for another run, under another key, or packed in another way" in said


def test_pai_8_messages_that_state_another_sender_are_refused(server: Server) -> None:
    draw = Draw(6)
    names = ["c3", "c", "c77", " c7", "c7 ", "C7", "c7\0", "ｃ7", "server", "holder 1", "x" * 200, "\n", "'"]
    for _ in range(CASES):
        name = draw.choice([*names, draw.randbytes(4).hex()])
        assert "sent the message of" in server.refuses(rewritten(sent("c3", 0, 3), sender=name))


def test_messages_of_another_kind_are_refused(server: Server) -> None:
    draw = Draw(7)
    for _ in range(CASES):
        data = rewritten(sent("c7", 0, 7), kind=draw.choice([Kind.NOISE, Kind.SUM]))
        assert "this is the place of a contribution" in server.refuses(data)
        wrong = bytearray(data)
        wrong[16] = draw.choice([0, *range(4, 256)])
        assert "which there is not" in server.refuses(signed_anew(bytes(wrong)))
    said = refusal(lambda: server.sum.add_noise("holder 1", rewritten(sent("c7", 0, 7), sender="holder 1")))
    assert said == "holder 1: sent a contribution: this is the place of a noise"


def test_pai_8_messages_that_came_before_are_refused(server: Server) -> None:
    """As they are, under another name, in another order, one old ciphertext among fresh ones, or a fresh one twice."""
    draw = Draw(8)
    for _ in range(CASES):
        old = parsed(sent("c1", 0, 1)).integers
        fresh = list(parsed(sent("c7", 0, 7)).integers)
        fresh[draw.randrange(2)] = draw.choice([*old, *parsed(sent("c2", 0, 2)).integers])
        unseen = draw.randrange(2, N * N)
        again = draw.choice([old, old[::-1], fresh, [unseen, unseen]])
        said = server.refuses(rewritten(sent("c7", 0, 7), integers=again))
        assert "sent a ciphertext that was there before" in said
        assert "sent the message of" in server.refuses(sent("c1", 0, 1))
        said = refusal(lambda: server.sum.add("c1", draw.choice([sent("c1", 0, 1), sent("c1", 0, 9)])))
        assert "has contributed to this round already" in said


def test_pai_8_a_server_that_remembers_no_round_refuses_messages_of_all_rounds_before() -> None:
    """As after a restart: as they are, or with round, sender and run of now in the place of their own."""
    draw, now = Draw(9), 40
    names = [f"c{i}" for i in range(4)]
    for case in range(CASES):
        restarted, name, before = Aggregator(AGREED, now), draw.choice(names), draw.randrange(8)
        old = sent(name, before, before)
        said = refusal(lambda name=name, old=old, to=restarted: to.add(name, old))
        assert f"sent a message of round {before + 1}, this is round 41" in said
        moved = bytearray(old)
        moved[33:41] = struct.pack("<Q", now)
        if case % 2:
            name = draw.choice([other for other in names if other != name])
            moved[HEAD : HEAD + 2] = name.encode()
        assert "damaged on its way" in refusal(lambda name=name, moved=moved, to=restarted: to.add(name, bytes(moved)))
        assert restarted.senders == ()


def test_pai_8_no_memory_of_ciphertexts_would_recognize_one_that_was_made_unlike_itself() -> None:
    """Whoever writes headers multiplies by an encryption of zero, too: against him there is the channel, within the slots."""
    old, zeros = parsed(sent("c3", 4, 3)), parsed(AGREED.contribution("c7", 0, np.zeros(SIZE, dtype=np.int64)))
    bare = PUBLIC.public_key.encrypt([0] * len(old.integers)).integers
    server = Server()
    server.sum.add("c7", replace(zeros, integers=[c * z % N**2 for c, z in zip(old.integers, bare, strict=True)]).to_bytes(512))
    opened = [Holder(share, AGREED).open(server.sum.request()) for share in SHARES[1:]]
    total, _ = combined(server.sum, PUBLIC, opened)
    assert total.tolist() == (steps(1) + steps(2) + steps(3)).tolist()


HOSTILE: dict[str, Callable[[Draw], int]] = {
    "zero": lambda _: 0,
    "n": lambda draw: N * draw.choice([1, draw.randrange(1, N)]),
    "n squared": lambda _: N * N,
    "beyond": lambda draw: draw.randrange(N * N + 1, 2**1024),
    "a multiple of a prime": lambda draw: draw.choice(SAFE) * draw.randrange(1, N),
    "without randomness": lambda draw: 1 + N * draw.randrange(N),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_messages_with_what_is_no_fresh_ciphertext_are_refused(make: Callable[[Draw], int], server: Server) -> None:
    draw = Draw(10)
    for _ in range(CASES):
        integers = list(parsed(sent("c7", 0, 7)).integers)
        integers[draw.randrange(2)] = make(draw)
        server.refuses(rewritten(sent("c7", 0, 7), integers=integers))


def test_messages_of_too_few_or_too_many_ciphertexts_are_refused(server: Server) -> None:
    draw = Draw(11)
    for _ in range(CASES):
        count = draw.choice([0, 1, 3, 4, draw.randrange(3, 40)])
        server.refuses(rewritten(sent("c7", 0, 7), integers=[draw.randrange(2, N * N) for _ in range(count)]))
    claimed = bytearray(sent("c7", 0, 7))
    claimed[43:47] = struct.pack("<I", 2**32 - 1)
    assert "at most 2 were agreed on" in server.refuses(signed_anew(bytes(claimed)))


def test_more_clients_than_agreed_are_refused() -> None:
    server = Server()
    for i in range(3, 17):
        server.sum.add(f"c{i}", sent(f"c{i}", 0, i))
    for i in range(17, 17 + CASES):
        said = refusal(lambda i=i: server.sum.add(f"c{i}", sent("c7", 0, 7)))
        assert said == f"client 'c{i}': the packing has room for 16 contributions, which have come"
    assert len(server.sum.senders) == 16


def test_a_sender_without_a_name_or_with_one_that_is_too_long_is_refused(server: Server) -> None:
    for letters in (0, 201, 65_535):
        whole = sent("c7", 0, 7)
        head = bytearray(whole[:HEAD])
        head[41:43] = letters.to_bytes(2, "little")
        hostile = signed_anew(bytes(head) + b"c" * letters + whole[HEAD + 2 :])
        assert f"states a sender of {letters} bytes" in server.refuses(hostile)
