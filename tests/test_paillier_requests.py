"""A thousand of each kind of sum that a holder of the key must not open, and of answers of holders that are false.

The holder opens nothing, remembers nothing of it, and opens the honest sum of the same round afterwards.
"""

import random
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import refusals
from hubbub.errors import RunFolderError, SumNotOpenedError
from hubbub.secagg import packing, threshold
from hubbub.secagg.aggregator import Aggregator, Request
from hubbub.secagg.key_holder import Holder, combined
from hubbub.secagg.paillier import PrivateKey
from hubbub.secagg.proofs import Proof
from hubbub.secagg.protocol import Agreement, Kind, Message, MessageFile
from hubbub.secagg.threshold import Partial
from paillier_nodes import owner as large
from refusals import limited, traced
from small_keys import SAFE, SMALL_SAFE

CASES = 1000
Draw = random.Random
PUBLIC, SHARES = threshold.deal(*SAFE, holders=3, threshold=2, min_contributions=3)
PLAN = packing.Packing(bits=16, clip=1.0, max_clients=8, key_bits=512, noise=1000)
AGREED = Agreement(PUBLIC.public_key, PLAN, size=20, run="a run", min_contributions=3, server_noise=False)
NOISED = replace(AGREED, noising_holders=2)
OWNED = replace(AGREED, whole_key=True, server_noise=True)
ELSEWHERE = replace(AGREED, run="another run")
CLIENTS = ("c1", "c2", "c3")
TOLD = refusals.forms([*SAFE, *SMALL_SAFE, *(share.secret for share in SHARES)])


def refusal(call: Callable[[], object]) -> str:
    return refusals.refusal(call, TOLD, SumNotOpenedError)


def steps(name: str) -> np.ndarray:
    return np.full(20, int(name[1:]) * 1000)


@cache
def sent(name: str, round_index: int = 0, agreement: Agreement = AGREED) -> bytes:
    return agreement.contribution(name, round_index, steps(name))


@cache
def noise(name: str, round_index: int = 0, agreement: Agreement = AGREED) -> bytes:
    return agreement.noise(name, round_index, np.full(20, 7))


def rewritten(data: bytes, **changes: Any) -> bytes:
    message = Message.from_bytes(data, 512, "a test", at_most=9)
    return replace(message, **changes).to_bytes(512)


@cache
def bare() -> bytes:
    """One client's ciphertexts as the sum of a server."""
    return rewritten(sent("c1"), kind=Kind.SUM, sender="server")


@cache
def open_to_all(number: int) -> bytes:
    """A contribution of zeros that hides nothing, which the server makes up to be left with one client's."""
    plaintexts = PLAN.pack_steps(np.zeros(20, dtype=np.int64))
    return rewritten(sent("c2"), sender=f"s{number}", integers=[1 + PUBLIC.n * m for m in plaintexts])


def damaged(draw: Draw, data: bytes) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    return draw.choice([bytes(changed), data[: draw.randrange(len(data))], draw.randbytes(200)])


def asked(*contributions: bytes, noise: tuple[bytes, ...] = (), total: bytes = b"", round_index: int = 0) -> Request:
    return Request(round_index, contributions, noise, total)


def mixed(draw: Draw, *contributions: bytes) -> Request:
    return asked(*draw.sample(contributions, len(contributions)))


REQUESTS: dict[str, Callable[[Draw], Request]] = {
    "nothing": lambda _: asked(),
    "a single one": lambda draw: asked(sent(draw.choice(CLIENTS))),
    "too few": lambda draw: asked(*map(sent, draw.sample(CLIENTS, 2))),
    "one with noise": lambda draw: asked(sent("c1"), noise=tuple(noise(f"holder {i}") for i in range(1, draw.randrange(2, 6)))),
    "the server's sum": lambda draw: asked(*map(sent, CLIENTS[: draw.randrange(3)]), total=bare()),
    "the server's sum in their place": lambda draw: mixed(draw, bare(), sent("c2"), sent("c3")),
    "one twice": lambda draw: mixed(draw, sent("c1"), sent("c1"), sent(draw.choice(CLIENTS))),
    "one under other names": lambda draw: mixed(
        draw, sent("c1"), rewritten(sent("c1"), sender="c2"), rewritten(sent("c1"), sender=draw.randbytes(3).hex())
    ),
    "another round": lambda draw: asked(*(sent(name, 1) for name in CLIENTS[:2]), sent("c3", draw.randrange(2))),
    "in another round": lambda draw: asked(*map(sent, CLIENTS), round_index=draw.randrange(1, 99)),
    "another run": lambda draw: mixed(draw, sent("c1"), sent("c2"), sent("c3", 0, ELSEWHERE)),
    "noise in their place": lambda draw: mixed(draw, sent("c1"), noise("holder 1"), noise("holder 2")),
    "them in the place of noise": lambda draw: replace(mixed(draw, *map(sent, CLIENTS)), noise=(sent("c4"),)),
    "zeros that hide nothing": lambda draw: mixed(draw, sent("c1"), open_to_all(draw.randrange(9)), open_to_all(9)),
    "damaged": lambda draw: mixed(draw, sent("c1"), sent("c2"), damaged(draw, sent("c3"))),
    "damaged noise": lambda draw: replace(mixed(draw, *map(sent, CLIENTS)), noise=(damaged(draw, noise("holder 1")),)),
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())
def test_pai_13_what_is_no_sum_of_enough_clients_is_not_opened(make: Callable[[Draw], Request]) -> None:
    draw = Draw(0)
    holder = Holder(SHARES[0], AGREED)
    for _ in range(CASES):
        said = refusal(lambda: holder.open(make(draw)))
        assert said.startswith(("holder 1 opens nothing: ", "round "))
        assert holder._done.next_round == 0
    assert holder.open(asked(*map(sent, CLIENTS)))


def owned(names: tuple[str, ...], round_index: int) -> Aggregator:
    """A sum for the owner of the whole key, with the server's noise."""
    server = Aggregator(OWNED, round_index)
    for name in names:
        server.add(name, OWNED.contribution(name, round_index, steps(name)))
    server.add_own_noise(np.full(20, 7))
    return server


def test_the_owner_of_the_whole_key_is_sent_the_sum_and_nothing_that_it_is_made_of() -> None:
    server, owner = owned(CLIENTS, 0), Holder(PrivateKey.from_primes(*SAFE), OWNED)
    request = server.request()
    assert request.contributions == request.noise == ()
    opened, liars = combined(server, None, [owner.open(request)])
    assert (opened == 6007).all()
    assert not liars
    # What it could read one by one it does not take, whatever a server sends.
    for round_index in range(1, 4):
        parts = tuple(OWNED.contribution(name, round_index, steps(name)) for name in CLIENTS)
        with pytest.raises(SumNotOpenedError, match="the sum: sent 0 bytes"):
            owner.open(Request(round_index, parts, ()))
    with pytest.raises(ValueError, match="is for the owner of a whole key, and this is a share"):
        Holder(SHARES[0], OWNED)


def test_for_the_owner_of_the_whole_key_the_server_keeps_one_sum_and_no_contribution() -> None:
    public = large().public_key
    agreed = Agreement(public, packing.Packing(16, 1.0, 100, 2048), 2000, "a run", whole_key=True, server_noise=False)
    server, shift = Aggregator(agreed, 0), 1 + public.n
    first = Message.from_bytes(agreed.contribution("c0", 0, np.zeros(2000, dtype=np.int64)), 2048, "c0", at_most=99)
    size = len(first.to_bytes(2048))
    held = []
    with traced() as memory:
        for i in range(60):
            integers = [c * pow(shift, i, public.n_square) % public.n_square for c in first.integers]
            server.add(f"c{i}", replace(first, sender=f"c{i}", integers=integers).to_bytes(2048))
            del integers
            held.append(memory()[0])
    # A digest of each ciphertext, in a set, takes less than a third of it.
    assert held[-1] - held[9] < 50 * size / 3


def test_the_owner_of_the_whole_key_keeps_back_what_too_few_have_made() -> None:
    owner = Holder(PrivateKey.from_primes(*SAFE), OWNED)
    for round_index, names in enumerate([(), ("c1",), ("c1", "c2")]):
        server = owned(names, round_index)
        sums = Message(Kind.SUM, OWNED.digest, round_index, "server", server.total.integers).to_bytes(512)
        said = refusal(lambda sums=sums, i=round_index: owner.open(Request(i, (), (), sums)))
        assert said.endswith("opened no sum of 3 contributions or more, and keeps it")


def test_noise_that_nobody_agreed_on_is_not_added() -> None:
    server = owned(CLIENTS, 0)
    with pytest.raises(ValueError, match="other: sent noise that was not agreed on"):
        server.add_noise("other", OWNED.noise("other", 0, np.full(20, 7)))
    with pytest.raises(ValueError, match="server: sent noise that was not agreed on"):
        Aggregator(replace(OWNED, server_noise=False), 0).add_own_noise(np.full(20, 7))


def test_pai_14_a_sum_without_the_servers_noise_is_asked_of_nobody_and_opened_by_nobody() -> None:
    hidden = replace(AGREED, server_noise=True)
    for agreement in (hidden, replace(hidden, whole_key=True)):
        server = Aggregator(agreement, 0)
        for name in CLIENTS:
            server.add(name, agreement.contribution(name, 0, steps(name)))
        assert "the server's noise is not in the sum" in refusal(server.request)
        server.add_own_noise(np.full(20, 7))
        assert server.request()
    contributions = tuple(sent(name, 0, hidden) for name in CLIENTS)
    holder = Holder(SHARES[0], hidden)
    assert "the server's noise is not in the sum" in refusal(lambda: holder.open(Request(0, contributions, ())))
    instead = sent("c4", 0, hidden)
    assert "this is the place of a noise" in refusal(lambda: holder.open(Request(0, contributions, (instead,))))
    assert holder._done.next_round == 0
    assert holder.open(Request(0, contributions, (noise("server", 0, hidden),)))


def test_a_round_is_opened_once_and_no_earlier_one_after_it() -> None:
    draw, holder = Draw(1), Holder(SHARES[0], AGREED)
    first = asked(*(sent(name, 5) for name in CLIENTS), round_index=5)
    answer = holder.open(first)
    # The same request again, after an answer that was lost on its way, is the same sum.
    assert holder.open(first).integers == answer.integers
    for _ in range(CASES):
        names, round_index = draw.sample([*CLIENTS, "c4"], 3), draw.randrange(6)
        again = asked(*(sent(name, round_index) for name in names), round_index=round_index)
        if again != first:
            assert refusal(lambda again=again: holder.open(again)).endswith("has opened a sum of this round already")


def test_pai_14_a_sum_without_the_holders_own_noise_is_not_opened() -> None:
    draw = Draw(2)
    holder = Holder(SHARES[0], NOISED)
    contributions = tuple(sent(name, 3, NOISED) for name in CLIENTS)
    own = holder.noise(3, np.full(20, 5))
    others = [noise("holder 2", 3, NOISED), noise("holder 3", 3, NOISED)]
    false = [noise("holder 1", 3, NOISED), noise("holder 1", 2, NOISED), rewritten(own, sender="holder 4")]
    for _ in range(CASES):
        given = tuple(draw.choice([*others, *false, damaged(draw, own)]) for _ in range(draw.randrange(4)))
        if draw.random() < 0.3:
            # Its own, and too few or too many others.
            given = (own, *others) if draw.random() < 0.5 else (own,)
        assert refusal(lambda given=given: holder.open(Request(3, contributions, given))).startswith("holder 1 opens nothing")
    with pytest.raises(ValueError, match="has given its noise of this round already"):
        holder.noise(3, np.full(20, 5))
    opened = holder.open(Request(3, contributions, (own, others[0])))
    summed = Aggregator(NOISED, 3)
    for name, data in zip(CLIENTS, contributions, strict=True):
        summed.add(name, data)
    summed.add_noise("holder 1", own)
    summed.add_noise("holder 2", others[0])
    second = SHARES[1].partial(summed.total, contributions=3)
    assert combined(summed, PUBLIC, [opened, second])[0].tolist() == (sum(map(steps, CLIENTS)) + 12).tolist()


def test_pai_17_a_restart_does_not_make_a_holder_forget(tmp_path: Path) -> None:
    request = asked(*map(sent, CLIENTS))
    answer = Holder(SHARES[0], AGREED, tmp_path).open(request)
    for _ in range(3):
        again = Holder(SHARES[0], AGREED, tmp_path)
        assert (again._done.next_round, again.open(request).integers) == (1, answer.integers)
        other = asked(sent("c1"), sent("c2"), sent("c4"))
        assert refusal(lambda again=again, other=other: again.open(other)).endswith("has opened a sum of this round already")
    with pytest.raises(RunFolderError, match="another run"):
        Holder(SHARES[0], ELSEWHERE, tmp_path)


def test_noise_that_was_given_out_before_a_restart_is_asked_for_after_it(tmp_path: Path) -> None:
    own = Holder(SHARES[0], NOISED, tmp_path).noise(0, np.full(20, 5))
    contributions, theirs = tuple(sent(name, 0, NOISED) for name in CLIENTS), noise("holder 2", 0, NOISED)
    again = Holder(SHARES[0], NOISED, tmp_path)
    with pytest.raises(ValueError, match="has given its noise of this round already"):
        again.noise(0, np.full(20, 5))
    refusal(lambda: again.open(Request(0, contributions, (noise("holder 1", 0, NOISED), theirs))))
    assert again.open(Request(0, contributions, (own, theirs))).holder == 1


# What a server keeps of a round.


@pytest.mark.slow
def test_contributions_are_on_disk_and_are_read_again_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.secagg.protocol._IN_MEMORY", 1)
    key, plan = large().public_key, packing.Packing(bits=16, clip=1.0, max_clients=12, key_bits=2048)
    agreed = Agreement(key, plan, size=200 * plan.slots, run="a run", server_noise=False)
    held = Agreement(key, plan, agreed.size, "a run", server_noise=False, whole_key=True)
    messages = {f"c{i}": agreed.contribution(f"c{i}", 0, np.full(agreed.size, i)) for i in range(12)}
    peaks = []
    with traced() as memory:
        for keeping in (agreed, held):
            summing = Aggregator(keeping, 0)
            before = memory()[0]
            for name, data in messages.items():
                # Made anew, as a message that arrives is.
                parsed = Message.from_bytes(data, 2048, name, at_most=200)
                summing.add(name, replace(parsed, agreement=keeping.digest).to_bytes(2048))
            peaks.append(memory()[0] - before)
            if keeping is agreed:
                assert list(summing.request().contributions) == list(messages.values())
    # As little as for the owner of a whole key, for whom nothing is kept; twelve messages are 1.2 MB.
    assert peaks[0] - peaks[1] < 150_000


def test_messages_in_a_file_are_found_again_up_to_a_torn_end(tmp_path: Path) -> None:
    draw, path = Draw(5), tmp_path / "messages"
    for _ in range(100):
        messages, cut = [draw.randbytes(draw.randrange(40)) for _ in range(draw.randrange(6))], draw.randrange(60)
        path.unlink(missing_ok=True)
        kept = MessageFile(path)
        for message in messages:
            kept.append(message)
        del kept
        data = path.read_bytes()[: -cut or None]
        path.write_bytes(data)
        found = MessageFile(path)
        assert list(found) == messages[: len(found)]
        ends = np.cumsum([8 + len(message) for message in messages])
        assert len(found) == (ends <= len(data)).sum()
        found.keep(some := draw.randint(0, len(found)))
        found.append(b"another")
        assert list(found) == [*messages[:some], b"another"]


def test_a_message_in_a_file_is_read_whole_where_a_read_gives_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of 2 GiB does."""
    kept, message = MessageFile(tmp_path / "messages"), bytes(range(256)) * 9
    kept.append(message)
    whole = kept._file
    monkeypatch.setattr(kept, "_file", SimpleNamespace(seek=whole.seek, read=lambda size: whole.read(min(size, 100))))
    assert list(kept) == [message]


# False answers. The key is short, so that a thousand proofs take little time; holder 2 lies.

SHORT, SHORT_SHARES = threshold.deal(*SMALL_SAFE, holders=3, threshold=2)
SHORT_AGREED = Agreement(SHORT.public_key, packing.Packing(bits=4, max_clients=4, key_bits=64), size=9, run="a run")


@cache
def summed(value: int) -> Aggregator:
    aggregator = Aggregator(SHORT_AGREED, 0)
    for i in range(3):
        aggregator.add(f"c{i}", SHORT_AGREED.contribution(f"c{i}", 0, np.full(9, value)))
    return aggregator


@pytest.mark.parametrize("before", [0, 2])
def test_res_4_a_contribution_that_a_full_disk_refuses_changes_no_other(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("c1", "c2", "c3")
    messages = [SHORT_AGREED.contribution(name, 0, np.full(9, 1)) for name in names]
    taken = before * (8 + len(messages[0]))
    # The first messages are in memory, none or two of them, and go to the disk with the next one.
    monkeypatch.setattr("hubbub.secagg.protocol._IN_MEMORY", taken)
    summing = Aggregator(SHORT_AGREED, 0)
    for name, data in zip(names[:2], messages[:2], strict=True):
        summing.add(name, data)
    with limited(resource.RLIMIT_FSIZE, 2 * (8 + len(messages[0])) + 9):
        for _ in range(2):
            with pytest.raises(
                OSError, match=r"^\[Errno 27\] client 'c3': cannot be kept in .* for the holders: .* by TMPDIR$"
            ):
                summing.add("c3", messages[2])
            assert summing.senders == ("c1", "c2")
            assert list(summing.request().contributions) == messages[:2]
    summing.add("c3", messages[2])
    assert list(summing.request().contributions) == messages


@cache
def answer(number: int, value: int = 1) -> Partial:
    return Holder(SHORT_SHARES[number - 1], SHORT_AGREED).open(summed(value).request())


def spoilt(draw: Draw) -> Partial:
    """As numbers of holder 2 that are not its answer."""
    true, other = answer(2), answer(2, 2)
    results = list(true.integers)
    results[draw.randrange(2)] = draw.choice([0, 1, SHORT.n, draw.randrange(2, SHORT.n**2)])
    return draw.choice(
        [
            replace(true, integers=tuple(results)),
            replace(true, proof=Proof(true.proof.challenge, true.proof.response ^ (1 << draw.randrange(800)))),
            replace(true, proof=other.proof),
            replace(true, integers=other.integers),
            replace(answer(3), holder=2),
            other,
            replace(other, ciphertexts=true.ciphertexts),
            replace(true, key_id=draw.randbytes(16).hex()),
            replace(true, shape=(1,)),
            replace(true, ciphertexts=true.ciphertexts[::-1]),
        ]
    )


def test_pai_12_false_answers_are_left_out_by_name_and_the_others_suffice() -> None:
    draw = Draw(3)
    for _ in range(CASES // 2):
        given = [answer(1), spoilt(draw), answer(3)]
        draw.shuffle(given)
        total, liars = combined(summed(1), SHORT, given)
        assert (liars, total.tolist()) == (("holder 2",), [3] * 9)


def test_where_too_few_answers_are_true_nothing_is_read_and_the_liar_is_named() -> None:
    draw = Draw(4)
    for _ in range(CASES // 2):
        given = [answer(1), spoilt(draw)]
        draw.shuffle(given)
        assert refusal(lambda given=given: combined(summed(1), SHORT, given)).endswith("; false answers of holder 2")
    with pytest.raises(SumNotOpenedError) as caught:
        combined(summed(1), SHORT, given)
    assert caught.value.who == ("holder 2",)
