"""Holders of the key behind the nodes of a grid: what they open, what they refuse, and what they do not forget."""

import json
import logging
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from safetensors.numpy import save

from hubbub import Mechanism, MinSeparation
from hubbub._util import strict_json
from hubbub.errors import SumNotOpenedError
from hubbub.flower.holder_messages import opened
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.secagg_server import GridHolders
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import strategy_arrays, toeplitz
from hubbub.noise import NoiseStream
from hubbub.noise.lattice import Lattice
from hubbub.secagg import key_files
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import Partial, proved
from malformed.contents import flipped
from paillier_nodes import SIZE, agreed, dealt, grid_of, owner, shares_in, summed
from refusals import limited

Steps = npt.NDArray[np.int64]
ONE, OTHER = np.arange(SIZE), np.array([7, -7, 0, 1000, -30000])
MECHANISM = Mechanism(toeplitz.square_root(3, 2), MinSeparation(2, 2), 1.0)
SETTINGS = {"clip_norm": 1.0, "lattice_bits": 14}
PROMISE = Promise(3, MECHANISM, settings=SETTINGS, noise_by="holders", setting="holders add the noise")
SEEDS = (11, 12, 13)
TIMEOUT = 10.0
# The nodes of a LocalGrid in order; the first three hold the shares.
FIRST, SECOND, THIRD, FOURTH = 1001, 1002, 1003, 1004


def configs(folder: Path, seeds: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"paillier-share": str(path)} for path in shares_in(folder)]
    for config, seed in zip(found, seeds, strict=False):
        config["paillier-noise-seed"] = seed
    return found


def plain(**others: Any) -> Agreement:
    return agreed(dealt()[0].public_key, **others)


def noised(**others: Any) -> Agreement:
    return plain(noising_holders=3, **others)


def on(grid: LocalGrid, agreement: Agreement, promise: Promise | None = None) -> GridHolders:
    return GridHolders(lambda: grid, agreement, dealt()[0], promise, TIMEOUT)


def told(agreement: Agreement, action: str, **others: Any) -> dict[str, ConfigRecord]:
    agreement_bytes = strict_json.canonical(agreement.record())
    return {"paillier": ConfigRecord({"action": action, "hubbub_agreement": agreement_bytes, **others})}


def to(grid: LocalGrid, node: int, records: dict[str, ConfigRecord]) -> Message:
    (reply,) = grid.send_and_receive([Message(RecordDict(dict(records)), node, "query.paillier")])
    return reply


def refusal(reply: Message) -> str:
    assert reply.has_error()
    assert reply.error.code == 6
    return reply.error.reason


def hello(agreement: Agreement, promise: Promise) -> dict[str, ConfigRecord]:
    record = strict_json.canonical({**promise.record(), "kind": "promise"})
    return told(agreement, "hello", promise=record, arrays=save(strategy_arrays(MECHANISM.strategy)))


def opening(agreement: Agreement, aggregator: Aggregator) -> dict[str, ConfigRecord]:
    request = aggregator.request()
    parts = {f"contribution-{i}": ConfigRecord({"data": data}) for i, data in enumerate(request.contributions)}
    return {**told(agreement, "open", round=request.round_index), **parts, "total": ConfigRecord({"data": b""})}


def asked_to_open(agreement: Agreement, contributions: list[Steps]) -> dict[str, ConfigRecord]:
    return opening(agreement, summed(agreement, contributions))


def first(records: dict[str, ConfigRecord], **others: Any) -> dict[str, ConfigRecord]:
    return {"paillier": ConfigRecord({**records["paillier"], **others})}


@pytest.fixture(scope="module")
def told_node(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalGrid, Path]:
    """A grid of one node, a holder that was told of a run without noise, and its folder."""
    folder = tmp_path_factory.mktemp("told")
    grid = grid_of(configs(folder), nodes=1)
    to(grid, FIRST, told(plain(), "hello"))
    return grid, folder / "holder-1"


# What is opened


def test_two_of_three_holders_among_all_nodes_open_a_sum_and_one_that_is_silent_or_lies_is_named_and_another_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    grid = grid_of(configs(tmp_path))
    holders = on(grid, plain())
    assert holders.find() == {FIRST: 1, SECOND: 2, THIRD: 3}
    assert holders.open(summed(plain(), [ONE, OTHER])).tolist() == (ONE + OTHER).tolist()
    assert not caplog.text
    grid.offline([FIRST])
    assert holders.open(summed(plain(), [OTHER, OTHER], 1)).tolist() == (2 * OTHER).tolist()
    assert "opened without holder 1, who did not answer" in caplog.text
    grid.offline([])
    holders.find()
    grid.reply_filter = _changed(SECOND, lambda record: {**record, "parts": flipped(record["parts"], 0)})
    assert holders.open(summed(plain(), [ONE, ONE], 2)).tolist() == (2 * ONE).tolist()
    assert "opened without holder 2, who answered falsely" in caplog.text


@pytest.mark.slow
def test_a_large_round_comes_in_several_messages_and_who_misses_one_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hubbub.flower.holder_messages._TOGETHER", 1)
    grid, actions = grid_of(configs(tmp_path)), list[str]()

    def arriving(reply: Message) -> Message | list[Message]:
        record = reply.content["paillier"]
        actions.append("take" if "taken" in record else "open" if "parts" in record else "hello")
        # The last holder's receipt of the second message is lost.
        return [] if reply.metadata.src_node_id == THIRD and record.get("taken") == 2 else reply

    grid.reply_filter = arriving
    holders = on(grid, plain())
    holders.find()
    actions.clear()
    assert holders.open(summed(plain(), [ONE, OTHER, ONE])).tolist() == (2 * ONE + OTHER).tolist()
    assert actions == ["take"] * 6 + ["open"] * 2
    assert "opened without holder 3, who did not answer" in caplog.text
    left = {path.parent.parent.name for path in tmp_path.glob("*/holder-*/contributions-0-*")}
    assert left == {"holder-3"}
    # Of its place in an earlier round nothing is left.
    grid.reply_filter = None
    holders.find()
    assert holders.open(summed(plain(), [ONE, OTHER], 1)).tolist() == (ONE + OTHER).tolist()
    assert not list(tmp_path.glob("*/holder-*/contributions-*"))


def test_pai_13_contributions_that_do_not_follow_those_that_came_are_refused(tmp_path: Path) -> None:
    grid, agreement = grid_of(configs(tmp_path)), plain()
    to(grid, FIRST, told(agreement, "hello"))
    whole = asked_to_open(agreement, [ONE, OTHER, ONE])
    one, two, three = (whole[f"contribution-{i}"] for i in range(3))

    def take(first: int, *parts: ConfigRecord, action: str = "take", **more: Any) -> Message:
        records = {f"contribution-{i}": part for i, part in enumerate(parts)}
        end = {"total": whole["total"]} if action == "open" else {}
        place = {"round": 0, "first": first, "series": b"of the server", **more}
        return to(grid, FIRST, {**told(agreement, action, **place), **records, **end})

    assert "1 contributions are said to have come, and none did" in refusal(take(1, two))
    take(0, one)
    assert "2 contributions are said to have come, and 1 did" in refusal(take(2, three))
    assert "and none did" in refusal(take(1, two, round=1))
    # Who is not the server may not put its own behind those that came, to have a single one of them opened.
    assert "and none did" in refusal(take(1, two, action="open", series=b"of another"))
    assert "at most 1 were agreed on" in refusal(take(3, two, three))
    assert "first = 5: must be" in refusal(take(5))
    assert "a contribution has more than" in refusal(take(1, ConfigRecord({"data": bytes(10**6)})))
    # The same place again: the later message counts.
    for last in (three, two):
        assert take(1, last).content["paillier"]["taken"] == 2
    assert "has contributed to this round already" in refusal(take(2, two, action="open"))
    parts = take(2, three, action="open").content["paillier"]["parts"]
    assert parts == to(grid, FIRST, whole).content["paillier"]["parts"]


def test_res_4_a_holder_with_a_full_disk_names_the_file_and_may_retry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid, agreement = grid_of(configs(tmp_path)), plain()
    to(grid, FIRST, told(agreement, "hello"))
    whole = asked_to_open(agreement, [ONE, OTHER, ONE])
    one, two, three = (whole[f"contribution-{i}"] for i in range(3))
    to(grid, FIRST, {**told(agreement, "take", round=0, first=0, series=b"s"), "contribution-0": one})
    more = {**told(agreement, "take", round=0, first=1, series=b"s"), "contribution-0": two}
    (kept,) = tmp_path.glob("*/holder-*/contributions-0-*")
    with limited(resource.RLIMIT_FSIZE, kept.stat().st_size + 9):
        refused = to(grid, FIRST, more)
    assert "the holder cannot; see its log" in refusal(refused)
    assert f"File too large: '{kept}'" in caplog.text
    assert to(grid, FIRST, more).content["paillier"]["taken"] == 2
    last = {**told(agreement, "open", round=0, first=2, series=b"s"), "contribution-0": three, "total": whole["total"]}
    assert to(grid, FIRST, last).content["paillier"]["parts"] == to(grid, FIRST, whole).content["paillier"]["parts"]


def test_pai_8_a_node_that_claims_a_share_it_has_not_is_sent_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid, said, asked = grid_of(configs(tmp_path)[:2]), dict[int, ConfigRecord](), set[int]()
    right = grid.push_messages
    grid.push_messages = lambda messages: right([asked.add(m.metadata.dst_node_id) or m for m in messages])  # type: ignore[method-assign]

    def arriving(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST and "holder" in reply.content["paillier"]:
            said[FIRST] = reply.content.config_records["paillier"]
        # What the true holder answered before, to another challenge, and the bare claim.
        claim = said.get(FIRST, ConfigRecord({"holder": 1, "key-id": dealt()[0].key_id}))
        return _changed(FOURTH, lambda _: claim)(reply)

    grid.reply_filter = arriving
    holders = on(grid, plain())
    for _ in range(2):
        assert holders.find() == {FIRST: 1, SECOND: 2}
    assert "claims to be holder 1 of the key, and does not prove it" in caplog.text
    asked.clear()
    assert holders.open(summed(plain(), [ONE, OTHER])).tolist() == (ONE + OTHER).tolist()
    assert asked == {FIRST, SECOND}


def test_holders_are_looked_for_on_each_grid(tmp_path: Path) -> None:
    here = [grid_of(configs(tmp_path))]
    holders = GridHolders(lambda: here[0], plain(), dealt()[0], None, TIMEOUT)
    holders.reach()
    here[0] = grid_of([], nodes=2)
    with pytest.raises(SumNotOpenedError, match="no holder of the key"):
        holders.reach()


def test_an_answer_that_is_no_part_of_what_was_asked_is_not_read(tmp_path: Path) -> None:
    grid, aggregator = grid_of(configs(tmp_path)), summed(plain(), [ONE, OTHER])
    to(grid, SECOND, told(plain(), "hello"))
    record = to(grid, SECOND, opening(plain(), aggregator)).content.config_records["paillier"]
    part = opened(RecordDict({"paillier": record}), 2, aggregator, dealt()[0])
    assert isinstance(part, Partial)
    assert proved(dealt()[0], part)
    for change, message in (
        ({"parts": record["parts"][:-1]}, "parts: has 511 bytes"),
        ({"holder": 3}, "answers as holder 3"),
        ({"response": bytes(20_000)}, "response: must be bytes, at most"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(RecordDict({"paillier": ConfigRecord({**record, **change})}), 2, aggregator, dealt()[0])


def _changed(node: int, change: Callable[[ConfigRecord], Any]) -> Callable[[Message], Message]:
    def arriving(reply: Message) -> Message:
        if reply.metadata.src_node_id == node:
            reply.content = RecordDict({"paillier": ConfigRecord({**change(reply.content.config_records["paillier"])})})
        return reply

    return arriving


def test_the_owner_of_a_whole_key_opens_sums_alone_and_nobody_beside_it_may_claim_to(tmp_path: Path) -> None:
    key_files.write_private(tmp_path / "private.json", owner())
    agreement = agreed(owner().public_key)
    config = {"paillier-share": str(tmp_path / "private.json")}
    grid = grid_of([config])
    holders = GridHolders(lambda: grid, agreement, owner().public_key, None, TIMEOUT)
    assert holders.open(summed(agreement, [ONE, OTHER])).tolist() == (ONE + OTHER).tolist()
    two = grid_of([config, config])
    holders = GridHolders(lambda: two, agreement, owner().public_key, None, TIMEOUT)
    with pytest.raises(SumNotOpenedError, match="node 1001 and node 1002 claim the whole key"):
        holders.open(summed(agreement, [ONE, OTHER], 1))


# What is not opened


def test_a_round_is_opened_once_and_the_same_request_again_by_the_same_numbers_after_a_restart_too(tmp_path: Path) -> None:
    first, second = (asked_to_open(plain(), steps) for steps in ([ONE, OTHER], [ONE, ONE]))
    grid = grid_of(configs(tmp_path))
    to(grid, FIRST, told(plain(), "hello"))
    parts = to(grid, FIRST, first).content["paillier"]["parts"]
    for again in (grid, grid_of(configs(tmp_path))):
        assert "has opened a sum of this round already" in refusal(to(again, FIRST, second))
        assert to(again, FIRST, first).content["paillier"]["parts"] == parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {**r, **first(r, action="decrypt")}, "must be hello, noise or open"),
        (lambda r: {**r, **first(r, round=1)}, "sent a message of round 1, this is round 2"),
        (lambda r: {name: record for name, record in r.items() if name != "total"}, "no ConfigRecord 'total'"),
        (lambda r: {name: record for name, record in r.items() if name != "contribution-1"}, "sums of fewer than 2"),
        (lambda r: {**r, "contribution-1": r["contribution-0"]}, "has contributed to this round already"),
        (lambda r: {**r, "contribution-1": ConfigRecord({"data": "x"})}, "must be bytes"),
        (lambda r: {**r, **{f"contribution-{i}": r["contribution-0"] for i in range(5)}}, "at most 4 were agreed on"),
        (lambda r: {**r, **{f"noise-{i}": r["contribution-0"] for i in range(2)}}, "2 records of noise, at most 1"),
    ],
)
def test_a_request_that_is_none_is_refused_and_the_round_stays_to_be_opened(
    told_node: tuple[LocalGrid, Path], change: Callable[[dict[str, ConfigRecord]], dict[str, ConfigRecord]], message: str
) -> None:
    grid, folder = told_node
    assert message in refusal(to(grid, FIRST, change(asked_to_open(plain(), [ONE, OTHER]))))
    assert {path.name for path in folder.glob("holder-1-*/*")} == {"agreement.json", "lock", "opened.json"}


def test_a_holder_keeps_to_what_was_agreed_and_promised_at_the_first_message_of_a_run(tmp_path: Path) -> None:
    grid = grid_of(configs(tmp_path), nodes=1)
    assert "say hello first" in refusal(to(grid, FIRST, asked_to_open(plain(), [ONE, OTHER])))
    assert not to(grid, FIRST, hello(noised(), PROMISE)).has_error()
    again = grid_of(configs(tmp_path), nodes=1)
    assert not to(again, FIRST, hello(noised(), PROMISE)).has_error()
    weaker = replace(PROMISE, mechanism=replace(MECHANISM, noise_multiplier=0.5))
    for records, message in (
        (hello(noised(), weaker), "promises something else"),
        (told(plain(), "hello"), "agreed to other terms"),
        (hello(noised(min_contributions=3), PROMISE), "agreed to other terms"),
        (told(plain(), "open", round=0), "agreed to other terms"),
    ):
        assert message in refusal(to(again, FIRST, records))
    # Another run is another agreement, in a folder of its own.
    assert not to(again, FIRST, told(plain(run="../../another"), "hello")).has_error()
    assert len(list((tmp_path / "holder-1").iterdir())) == 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (lambda: told(noised(), "hello"), "or holders add noise and the promise is missing"),
        (lambda: hello(plain(), PROMISE), "there is a promise and no holder adds noise"),
        (lambda: hello(noised(), replace(PROMISE, noise_by="server")), "does not promise that holders add noise"),
        (lambda: told(noised(), "hello", promise=b"{}", arrays=save({})), "the promise of the run cannot be read"),
        (lambda: told(agreed(owner().public_key), "hello"), "this holder has"),
        (lambda: told(plain(min_contributions=1), "hello"), "the key is for sums of at least 2"),
    ],
)
def test_holders_agree_to_nothing_unread(tmp_path: Path, records: Callable[[], dict[str, ConfigRecord]], message: str) -> None:
    grid = grid_of(configs(tmp_path), nodes=1)
    assert message in refusal(to(grid, FIRST, records()))
    assert not list((tmp_path / "holder-1").glob("*/agreement.json"))


def test_nodes_that_hold_nothing_say_so_and_open_nothing() -> None:
    grid = grid_of([], nodes=1)
    assert to(grid, FIRST, told(plain(), "hello")).content["paillier"]["holder"] == 0
    assert "holds no share of a key" in refusal(to(grid, FIRST, asked_to_open(plain(), [ONE, OTHER])))
    assert on(grid, plain()).find() == {}


def test_a_node_whose_file_is_no_key_tells_its_owner_alone_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    (tmp_path / "broken.json").write_text(json.dumps({"secret": "0xabc"}))
    (tmp_path / "broken.json").chmod(0o600)
    grid = grid_of([{"paillier-share": str(tmp_path / "broken.json")}], nodes=1)
    why = refusal(to(grid, FIRST, told(plain(), "hello")))
    assert "see its log" in why
    assert str(tmp_path) not in why
    assert str(tmp_path) in caplog.text
    assert "0xabc" not in caplog.text


# Noise of the holders


def _rows(round_index: int) -> Steps:
    """What the seeded holders add to a round, from their streams as they are."""
    streams = [NoiseStream(MECHANISM, SIZE, seed=seed) for seed in SEEDS]
    rows = [[stream.next_row() for _ in range(round_index + 1)][-1] for stream in streams]
    return sum(np.array([round(value * 2**14) for value in row.tolist()]) for row in rows)


@pytest.mark.slow
def test_each_holder_adds_the_row_of_its_own_stream_to_each_sum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    promise = replace(PROMISE, simulation=True)
    grid = grid_of(configs(tmp_path, SEEDS))
    holders = on(grid, noised(), promise)
    for round_index in (0, 2):
        aggregator = summed(noised(), [ONE, OTHER], round_index)
        holders.add_noise(aggregator, 1.0)
        assert holders.open(aggregator).tolist() == (ONE + OTHER + _rows(round_index)).tolist()
    # Their owners read what the run guarantees; of holders in one process once.
    assert caplog.text.count(promise.after(3, 1e-5).sentence()) == 1


def test_secret_noise_is_given_once_a_round_and_a_sum_without_it_is_not_opened_whoever_was_restarted(tmp_path: Path) -> None:
    begun, restarted = (grid_of(configs(tmp_path), nodes=3) for _ in range(2))
    holders = on(begun, noised(), PROMISE)
    aggregator = summed(noised(), [ONE, OTHER])
    holders.add_noise(aggregator, 1.0)
    request = told(noised(), "noise", **{"round": 0, "clip-norm": 1.0})
    for grid in (begun, restarted):
        assert "has given its noise of this round already" in refusal(to(grid, FIRST, request))
    bare = summed(noised(), [ONE, OTHER])
    for name in ("holder 1", "holder 2", "holder 3"):
        bare.add_noise(name, noised().noise(name, 0, np.zeros(SIZE, dtype=np.int64)))
    with pytest.raises(SumNotOpenedError, match=r"0 are too few.*silent: holder 1, holder 2, holder 3"):
        on(restarted, noised(), PROMISE).open(bare)
    steps = on(restarted, noised(), PROMISE).open(aggregator) - ONE - OTHER
    # Three rows of standard deviation 2^14: all within 100 steps, or one beyond 13 of its own, has a chance below 1e-9.
    assert 100 < np.abs(steps).max() < 13 * 2**16


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"round": 3, "clip-norm": 1.0}, "promised to have 3"),
        ({"round": 0, "clip-norm": 0.5}, r"the run promises 1.0"),
        ({"round": 0}, "clip-norm"),
    ],
)
def test_noise_is_given_to_promised_rounds_and_clip_norms_alone(tmp_path: Path, others: dict[str, Any], message: str) -> None:
    grid = grid_of(configs(tmp_path), nodes=1)
    to(grid, FIRST, hello(noised(), PROMISE))
    assert message in refusal(to(grid, FIRST, told(noised(), "noise", **others)))
    assert not to(grid, FIRST, told(noised(), "noise", **{"round": 0, "clip-norm": 1.0})).has_error()
    # Rows that follow go with the first one, or are not given.
    next((tmp_path / "holder-1").glob("holder-1-*/noise/noise.json")).unlink()
    assert "see its log" in refusal(to(grid, FIRST, told(noised(), "noise", **{"round": 1, "clip-norm": 1.0})))


@pytest.mark.slow
def test_with_a_clip_norm_that_moves_noise_follows_the_servers(tmp_path: Path) -> None:
    promise = replace(PROMISE, settings={"adaptive_clipping": {}, "lattice_bits": 14}, simulation=True)
    grid = grid_of(configs(tmp_path, SEEDS), nodes=3)
    aggregator = summed(noised(), [ONE, OTHER])
    holders = on(grid, noised(), promise)
    # A clip norm of 0.75 has steps of half the size.
    holders.add_noise(aggregator, 0.75)
    noise = holders.open(aggregator) - ONE - OTHER
    assert Lattice(0.75, 14).step == 2.0**-15
    assert np.abs(noise - 1.5 * _rows(0)).max() <= 6


def test_a_seed_is_for_simulations(tmp_path: Path) -> None:
    grid = grid_of(configs(tmp_path, SEEDS), nodes=1)
    assert "is for simulations" in refusal(to(grid, FIRST, hello(noised(), PROMISE)))
    # Nor does it take one later, when it has agreed without.
    to(grid_of(configs(tmp_path), nodes=1), FIRST, hello(noised(), PROMISE))
    assert "is for simulations" in refusal(to(grid, FIRST, hello(noised(), PROMISE)))
    assert "is for simulations" in refusal(to(grid, FIRST, told(noised(), "noise", **{"round": 0, "clip-norm": 1.0})))


def test_noise_that_is_missing_or_claimed_twice_costs_the_round_and_is_named(tmp_path: Path) -> None:
    shares = configs(tmp_path)
    grid = grid_of(shares)
    holders = on(grid, noised(), PROMISE)
    holders.find()
    grid.offline([SECOND])
    with pytest.raises(SumNotOpenedError, match="the noise of holder 2 is missing") as error:
        holders.add_noise(summed(noised(), [ONE, OTHER]), 1.0)
    assert error.value.who == ("holder 2",)
    twice = grid_of([*shares, shares[0]])
    with pytest.raises(SumNotOpenedError, match="the noise of holder 1 is missing, or two nodes claim the same share"):
        on(twice, noised(), PROMISE).add_noise(summed(noised(), [ONE, OTHER], 1), 1.0)
    # Of one that sends another's noise as its own nothing is taken either.
    grid = grid_of(shares)
    grid.reply_filter = _changed(THIRD, lambda r: {"noise": noised().noise("holder 1", 2, ONE)} if "noise" in r else r)
    with pytest.raises(SumNotOpenedError, match="the noise of holder 3 is missing"):
        on(grid, noised(), PROMISE).add_noise(summed(noised(), [ONE, OTHER], 2), 1.0)


def test_the_server_asks_no_holders_of_another_key_and_promises_noise_where_it_is_added() -> None:
    grid = grid_of([])
    with pytest.raises(ValueError, match="the agreement is on another"):
        on(grid, agreed(owner().public_key))
    with pytest.raises(ValueError, match="the holders are to add noise"):
        on(grid, noised())
    with pytest.raises(ValueError, match="says that the holders add the noise, and by the agreement none of them does"):
        on(grid, plain(), PROMISE)


def test_of_a_holder_whose_folder_is_damaged_nothing_is_opened(tmp_path: Path) -> None:
    grid, request = grid_of(configs(tmp_path), nodes=1), asked_to_open(plain(), [ONE, OTHER])
    to(grid, FIRST, told(plain(), "hello"))
    assert not to(grid, FIRST, request).has_error()
    (kept,) = (tmp_path / "holder-1").glob("holder-1-*")
    for content in (b"{}", b'{"next_round": 0}', (kept / "opened.json").read_bytes().replace(b'"noise":""', b'"noise":"0"')):
        (kept / "opened.json").write_bytes(content)
        assert "see its log" in refusal(to(grid, FIRST, request))
    # Without it the holder would have forgotten what it opened.
    (kept / "opened.json").unlink()
    assert "see its log" in refusal(to(grid, FIRST, request))
    assert "see its log" in refusal(to(grid, FIRST, told(plain(), "hello")))


def test_a_start_that_ended_between_promise_and_agreement_is_begun_anew(tmp_path: Path) -> None:
    grid = grid_of(configs(tmp_path), nodes=1)
    to(grid, FIRST, told(plain(), "hello"))
    (kept,) = (tmp_path / "holder-1").glob("holder-1-*")
    (kept / "agreement.json").unlink()
    (kept / "promise.json").write_bytes(b"{}")
    assert not to(grid, FIRST, told(plain(), "hello")).has_error()
    assert not to(grid, FIRST, told(plain(), "hello")).has_error()
    assert not (kept / "promise.json").exists()
