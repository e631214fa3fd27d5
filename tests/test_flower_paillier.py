"""A private run whose clients encrypt: the releases are those of their updates, and the server reads no single one of them."""

import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from conftest import raising
from hubbub import Mechanism, MinSeparation, PoissonSampling, flower, guarantee
from hubbub.errors import ConfigError, KeyFileError, LedgerError, RunFolderError, SumNotOpenedError
from hubbub.flower.secagg_server import GridHolders
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.mechanism.strategies import Identity, toeplitz
from hubbub.secagg import key_files, threshold
from paillier_nodes import dealt, owner, shares_in
from small_keys import SAFE

CLIENTS, DIM = 4, 60
# One step of a lattice of 14 bits for a clip norm of 1; float32 holds its multiples exactly.
STEP = 2.0**-14
STEPS = [np.arange(DIM) * (i + 1) * 10 - 100 * i for i in range(CLIENTS)]
START = ArrayRecord({"w": Array(np.zeros((8, 7), np.float32)), "b": Array(np.full(4, 0.5, np.float32))})
MODS = [flower.encrypting_mod, flower.clipping_mod]
# Noise that is less than half a step.
FAINT = 1e-6


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, "flwr")
    return lambda: caplog.text


def trained(message: Message, context: Context) -> Message:
    """Client i moves the numbers by STEPS[i] steps."""
    parts = np.split(STEPS[int(context.node_config["partition-id"])] * STEP, [56])
    arrays = message.content.array_records["arrays"]
    updates = {name: part.reshape(arrays[name].shape) for name, part in zip(("w", "b"), parts, strict=True)}
    moved = {name: Array(np.asarray(arrays[name].numpy() + update, np.float32)) for name, update in updates.items()}
    reply = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 3, "train_loss": 30.864})}
    return Message(RecordDict(reply), reply_to=message)


def federation(folder: Path, *, shared: bool = False, mods: list[Any] | None = None, **node: Any) -> flower.LocalGrid:
    """Nodes that train, of which the first hold the key; a new one on the same folder is a restart of all of them."""
    app = flower.hold(ClientApp(mods=MODS if mods is None else mods))
    app.train()(trained)
    files = shares_in(folder) if shared else [folder / "private-key.json"]
    if not files[0].exists():
        key_files.write_private(files[0], owner())

    def configured(index: int) -> dict[str, Any]:
        held = {"paillier-share": str(files[index])} if index < len(files) else {}
        return {"partition-id": index, **held, **node}

    return flower.LocalGrid(app, CLIENTS, configured)


def whole(**more: Any) -> flower.Paillier:
    return flower.Paillier(owner().public_key, **more)


def fixed(secagg: flower.Paillier | None, state: Path | None = None, inner: Any = FedAvg, **more: Any) -> flower.DPFedAvgFixed:
    settings = {"clip_norm": 1.0, "noise_multiplier": FAINT, "num_sampled_clients": CLIENTS, "state": state, **more}
    return flower.DPFedAvgFixed(inner(min_available_nodes=CLIENTS), secagg=secagg, **settings)


def numbers(arrays: ArrayRecord) -> npt.NDArray[np.float64]:
    return np.concatenate([arrays[name].numpy().reshape(-1) for name in ("w", "b")]).astype(np.float64)


def moved(arrays: ArrayRecord | None) -> list[float]:
    """How far a model went from where it began, in steps."""
    return ((numbers(arrays) - numbers(START)) / STEP).tolist()


def mean_of(*clients: int) -> list[float]:
    """What these clients of a cohort of four move the model by, in steps."""
    return (np.sum([STEPS[i] for i in clients], axis=0) / CLIENTS).tolist()


def one_round(strategy: PrivateStrategy, on: flower.LocalGrid, arrays: ArrayRecord = START) -> ArrayRecord | None:
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), on))
    return strategy.aggregate_train(1, on.send_and_receive(messages))[0]


@pytest.mark.parametrize(
    "secagg",
    [flower.Paillier(owner().public_key), flower.Paillier(dealt()[0]), flower.Paillier(dealt()[0], noise_by="holders")],
    ids=["owner", "holders", "holders with noise"],
)
def test_the_model_moves_by_the_mean_of_the_clients_updates_to_the_last_bit(tmp_path: Path, secagg: flower.Paillier) -> None:
    made = one_round(fixed(secagg), federation(tmp_path, shared=secagg.shared is not None))
    assert moved(made) == mean_of(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("secagg", "more", "expected"),
    [
        (flower.Paillier(owner().public_key), {}, 1.0),
        # The whole noise of each of three.
        (flower.Paillier(dealt()[0], noise_by="holders"), {}, math.sqrt(3)),
        # Shares for three, of four that answer.
        (flower.Paillier(owner().public_key, noise_by="clients"), {"min_survivors": 3}, math.sqrt(4 / 3)),
    ],
    ids=["server", "holders", "clients"],
)
def test_the_noise_is_in_the_release_whoever_adds_it(
    tmp_path: Path, secagg: flower.Paillier, more: dict[str, Any], expected: float
) -> None:
    mods = [flower.encrypting_mod, flower.noising_mod, flower.clipping_mod] if more else MODS
    strategy = fixed(secagg, noise_multiplier=20.0, **more)
    on = federation(tmp_path, shared=secagg.shared is not None, mods=mods)
    found = (np.array(moved(one_round(strategy, on))) * CLIENTS - np.sum(STEPS, axis=0)) * STEP
    # 60 normal numbers: χ² of 59 degrees of freedom is outside of these bounds with probability below 1e-4 (1e-6 below, and
    # 1e-4 above).
    assert 0.6 < np.std(found) / (20.0 * expected) < 1.36


def test_an_adaptive_clip_norm_follows_the_count_that_nobody_reads(tmp_path: Path) -> None:
    settings = {"noise_multiplier": 1e-4, "clip_count_stddev": 1e-3, "num_sampled_clients": CLIENTS, "secagg": whole()}
    # All updates are within the first, and none within the second: a quantile of one half lies below, or above.
    for initial, sign in ((4.0, -1), (1e-3, +1)):
        inner = FedAvg(min_available_nodes=CLIENTS)
        strategy = flower.DPFedAvgAdaptive(inner, initial_clip_norm=initial, **settings)
        one_round(strategy, federation(tmp_path))
        assert strategy.clip_norm == pytest.approx(initial * math.exp(sign * 0.2 * 0.5), rel=1e-3)


def test_correlated_noise_of_holders_goes_on_over_restarts_of_all_and_is_charged_once(
    tmp_path: Path, told: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    mechanism = Mechanism(toeplitz.square_root(6, bands=2), MinSeparation(1, 6), 1.0)

    def start(rounds: int) -> flower.MatrixFactorizationDP:
        settings = {"clip_norm": 1.0, "num_sampled_clients": CLIENTS, "keys_enforced": True, "state": tmp_path / "state"}
        secagg = flower.Paillier(dealt()[0], noise_by="holders")
        inner = FedAvg(min_available_nodes=CLIENTS)
        strategy = flower.MatrixFactorizationDP(inner, mechanism=mechanism, secagg=secagg, **settings)
        strategy.start(federation(tmp_path, shared=True), START, num_rounds=rounds)
        return strategy

    start(1)
    strategy = start(1)
    assert strategy.rounds_charged == 2
    assert strategy.guarantee().epsilon == pytest.approx(guarantee(mechanism, 1e-5, rounds=2).epsilon, rel=1e-12)
    places = sorted(tmp_path.glob("holder-*/holder-*"))
    assert len(places) == 3
    # All in this process, which says it once; two handlers may hear it.
    assert "Each holder adds noise of its own" in told()
    assert len({id(record) for record in caplog.records if "Each holder adds noise" in record.getMessage()}) == 1
    for place in places:
        # A row for each round, of an own key for each start.
        drawn = json.loads((place / "noise" / "noise.json").read_text())
        assert drawn["next_round"] == 2
        assert len(drawn["first_rows"]) >= 2
        assert json.loads((place / "promise.json").read_text())["noise_by"] == "holders"


def test_a_strategy_that_tells_clients_another_clip_norm_is_refused_since_the_server_cannot_clip_again(tmp_path: Path) -> None:
    class Own(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, ConfigRecord({**config, "dpfedavg_clip_norm": 1.999}), grid)

    strategy = fixed(whole(), inner=Own)
    with pytest.raises(ConfigError, match="does not pass on the config"):
        one_round(strategy, federation(tmp_path))
    assert strategy.rounds_charged == 0


def test_whoever_does_not_answer_counts_as_zero(tmp_path: Path) -> None:
    on = federation(tmp_path)
    on.offline([on.get_node_ids()[3]])
    assert moved(one_round(fixed(whole()), on)) == mean_of(0, 1, 2)


def test_too_few_contributions_open_nothing_and_3_such_rounds_end_the_start(
    tmp_path: Path, told: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on, strategy = federation(tmp_path), fixed(whole(min_contributions=3), tmp_path / "state")
    on.offline(on.get_node_ids()[2:])
    for charged in (1, 2):
        with monkeypatch.context() as costly:
            # Nor does it cost holders their noise.
            costly.setattr(GridHolders, "add_noise", raising(AssertionError("a holder added noise")))
            assert one_round(strategy, on) is None
        assert strategy.rounds_charged == charged
    assert "2 contributions came; sums of fewer than 3 are not opened; the round is discarded, its cost stays spent" in told()
    with pytest.raises(SumNotOpenedError, match="3 rounds in a row"):
        one_round(strategy, on)
    # The third is charged as well, and the run goes on.
    on.offline([])
    assert strategy.rounds_charged == 3
    assert moved(one_round(strategy, on)) == mean_of(0, 1, 2, 3)
    # Three in a row are counted anew.
    on.offline(on.get_node_ids()[2:])
    assert one_round(strategy, on) is None
    kinds = [record["kind"] for record in read_chain(tmp_path / "state" / "ledger.jsonl").records]
    assert (kinds.count("abort"), kinds.count("commit")) == (4, 1)


def of_another(reply: Message, others: list[Message]) -> None:
    reply.content = others[0].content


def tampered(reply: Message, others: list[Message]) -> None:
    record = reply.content.config_records["encrypted"]
    data = bytearray(record["hubbub_encrypted"])  # type: ignore[arg-type]
    data[-100] ^= 1
    record["hubbub_encrypted"] = bytes(data)


def in_the_clear(reply: Message, others: list[Message]) -> None:
    reply.content = RecordDict({"arrays": START, "metrics": MetricRecord({"num-examples": 1})})


@pytest.mark.parametrize(
    ("alter", "why"),
    [(of_another, "sent the message of"), (tampered, "its digest is another"), (in_the_clear, "arrays in the clear")],
)
def test_a_reply_that_is_not_this_clients_own_is_named_and_not_added(
    tmp_path: Path, told: Callable[[], str], alter: Callable[[Message, list[Message]], None], why: str
) -> None:
    on, seen = federation(tmp_path), list[Message]()
    last = on.get_node_ids()[3]

    def altered(reply: Message) -> Message:
        if reply.metadata.src_node_id == last and reply.has_content() and "paillier" not in reply.content:
            alter(reply, seen)
        seen.append(reply)
        return reply

    strategy = fixed(whole())
    messages = sorted(strategy.configure_train(1, START, ConfigRecord(), on), key=lambda message: message.metadata.dst_node_id)
    on.reply_filter = altered
    made, _ = strategy.aggregate_train(1, on.send_and_receive(messages))
    assert moved(made) == mean_of(0, 1, 2)
    assert f"counted as nothing: node {last}: " in told()
    assert why in told()


def test_holders_who_lie_are_named_and_cost_the_round_only_if_too_few_are_left(tmp_path: Path, told: Callable[[], str]) -> None:
    on, strategy = federation(tmp_path, shared=True), fixed(flower.Paillier(dealt()[0]))
    liars = set(on.get_node_ids()[:1])

    def lied(reply: Message) -> Message:
        if reply.metadata.src_node_id in liars and "parts" in reply.content.get("paillier", {}):
            parts = reply.content["paillier"]["parts"]
            reply.content["paillier"]["parts"] = bytes([parts[0] ^ 1]) + parts[1:]
        return reply

    on.reply_filter = lied
    assert moved(one_round(strategy, on)) == mean_of(0, 1, 2, 3)
    assert "holder 1" in told()
    liars.update(on.get_node_ids()[:2])
    assert one_round(strategy, on) is None
    assert "holder 2" in told()
    assert strategy.rounds_charged == 2


def test_nothing_is_charged_before_enough_holders_have_answered(tmp_path: Path) -> None:
    on, strategy = federation(tmp_path, shared=True), fixed(flower.Paillier(dealt()[0]))
    on.offline(on.get_node_ids()[:2])
    for _ in range(2):
        with pytest.raises(SumNotOpenedError, match=r"holders 3 of the key '.*' answered, and 2 are needed; .*paillier-share="):
            one_round(strategy, on)
        assert strategy.rounds_charged == 0
    on.offline([])
    assert moved(one_round(strategy, on)) == mean_of(0, 1, 2, 3)


def test_no_message_on_the_grid_holds_an_update_in_the_clear(tmp_path: Path) -> None:
    on, sent = federation(tmp_path, shared=True), list[bytes]()

    def recorded(reply: Message) -> Message:
        assert not reply.has_error()
        if "paillier" not in reply.content:
            held = {name: sorted(record) for name, record in reply.content.items()}
            assert held == {"encrypted": ["hubbub_encrypted"], "metrics": ["num-examples"]}
            assert reply.content["metrics"]["num-examples"] == 1
        sent.append(b"".join(record.deflate() for record in reply.content.values()))
        return reply

    on.reply_filter = recorded
    push = on.push_messages

    def pushed(messages: Any) -> list[str]:
        messages = list(messages)
        sent.extend(b"".join(record.deflate() for record in message.content.values()) for message in messages)
        return push(messages)

    on.push_messages = pushed  # type: ignore[method-assign]
    one_round(fixed(flower.Paillier(dealt()[0])), on)
    # Three questions to each holder and node, and their answers: hello, train, open.
    assert len(sent) == 2 * (CLIENTS + CLIENTS + 3)
    everything = b"".join(sent)
    for steps in STEPS:
        update = (steps * STEP).astype(np.float32)
        after = np.concatenate([update[:56], update[56:] + np.float32(0.5)])
        for clear in (update, after, steps.astype(np.int64), steps.astype(np.int32)):
            # Not even three numbers of it, at either end.
            assert clear[1:4].tobytes() not in everything
            assert clear[57:].tobytes() not in everything
    assert b"30.864" not in everything
    assert np.array(30.864).tobytes() not in everything


class _Killed(BaseException):
    """The process ends here."""


def test_pai_17_a_killed_server_aborts_the_round_and_reuses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, secagg = tmp_path / "state", flower.Paillier(dealt()[0], noise_by="holders")
    on = federation(tmp_path, shared=True)
    first = fixed(secagg, state)
    with monkeypatch.context() as patched:
        # When the holders have given their noise, and nothing was opened.
        patched.setattr(GridHolders, "open", raising(_Killed))
        with pytest.raises(_Killed):
            one_round(first, on)
    again = fixed(secagg, state)
    assert moved(one_round(again, on, again.resumed(START, on))) == mean_of(0, 1, 2, 3)
    assert again.rounds_charged == 2
    for place in tmp_path.glob("holder-*/holder-*"):
        assert json.loads((place / "noise" / "noise.json").read_text())["next_round"] == 2


@pytest.mark.slow
def test_pai_17_nodes_that_restart_between_the_exchanges_lose_nothing(tmp_path: Path) -> None:
    on, strategy = federation(tmp_path, shared=True), fixed(flower.Paillier(dealt()[0], noise_by="holders"))
    replies = on.send_and_receive(list(strategy.configure_train(1, START, ConfigRecord(), on)))
    # Every node's process begins anew, with what its folder holds.
    on._contexts.clear()
    assert moved(strategy.aggregate_train(1, replies)[0]) == mean_of(0, 1, 2, 3)


def test_a_server_that_was_rolled_back_gets_no_round_opened_twice(tmp_path: Path, told: Callable[[], str]) -> None:
    state, on = tmp_path / "state", federation(tmp_path)
    assert one_round(fixed(whole(), state), on) is not None
    shutil.copytree(state, tmp_path / "copy")
    assert one_round(fixed(whole(), state), on) is not None
    rolled_back = fixed(whole(), tmp_path / "copy")
    # Clients that were restarted remember nothing; the holder does.
    assert one_round(rolled_back, federation(tmp_path)) is None
    assert "has opened a sum of this round already" in told()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:-9], "agreement.json: cannot be read"),
        (lambda text: text.replace('"min_contributions":2', '"min_contributions":1'), "agreed on other terms"),
    ],
)
def test_an_agreement_that_was_changed_is_refused(tmp_path: Path, change: Callable[[str], str], why: str) -> None:
    state = tmp_path / "state"
    fixed(whole(), state).resumed(START, federation(tmp_path))
    path = state / "state" / "agreement.json"
    before = path.read_text()
    path.write_text(change(before))
    assert path.read_text() != before
    with pytest.raises(RunFolderError, match=why):
        fixed(whole(), state).resumed(START, federation(tmp_path))


def test_a_run_whose_agreement_is_lost_does_not_go_on_under_another_name(tmp_path: Path) -> None:
    fixed(whole(), tmp_path / "state").start(federation(tmp_path), START, num_rounds=1)
    (tmp_path / "state" / "state" / "agreement.json").unlink()
    with pytest.raises(RunFolderError, match=r"agreement.json: is missing, and clients and holders know the 1 rounds"):
        fixed(whole(), tmp_path / "state").resumed(START, federation(tmp_path))


def test_a_run_goes_on_under_its_own_key_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    fixed(whole(), state).resumed(START, federation(tmp_path))
    for secagg in (flower.Paillier(dealt()[0]), whole(bits=18), None):
        with pytest.raises(LedgerError):
            fixed(secagg, state).resumed(START, federation(tmp_path))


def test_a_key_comes_from_its_file_and_a_shared_one_brings_its_own_least_number(tmp_path: Path) -> None:
    key_files.write_public(tmp_path / "public-key.json", dealt()[0])
    secagg = flower.Paillier(tmp_path / "public-key.json")
    assert secagg.shared == dealt()[0]
    terms = secagg.encryption(None)
    assert (terms.holders, terms.threshold, terms.min_contributions, terms.key_bits) == (3, 2, 2, 2048)
    assert flower.Paillier(replace(dealt()[0], min_contributions=5)).encryption(None).min_contributions == 5
    # A survivor is a contribution.
    assert flower.Paillier(owner().public_key, noise_by="clients").encryption(3).min_contributions == 3


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    key, poisson = owner().public_key, Mechanism(Identity(3), PoissonSampling(0.5), 1.0)
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: fixed(whole(), num_sampled_clients=None, sampling_probability=0.5), "random cohorts"),
        (lambda: flower.MatrixFactorizationDP(FedAvg(), mechanism=poisson, clip_norm=1.0, secagg=whole()), "random cohorts"),
        (lambda: fixed(whole(min_contributions=5)), "min_contributions = 5: cohorts have 4"),
        (lambda: fixed(whole(), noise_at="clients", min_survivors=3), "say secagg=Paillier"),
        (lambda: fixed(whole(noise_by="clients")), "min_survivors: is missing"),
        (lambda: fixed(whole(), min_survivors=3), "min_survivors = 3: belongs to"),
        (lambda: flower.Paillier(key, noise_by="holders"), "who has the whole key and knows all noise"),
        (lambda: flower.Paillier(key, min_contributions=0), "min_contributions"),
    ]
    for refused, match in refusals:
        with pytest.raises((ConfigError, ValueError), match=match):
            refused()
    with pytest.raises(TypeError, match="must be a file, a PublicKey or a ThresholdKey"):
        flower.Paillier(owner())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a hubbub\.flower\.Paillier"):
        fixed("paillier")  # type: ignore[arg-type]
    with pytest.raises(KeyFileError, match=r"missing\.json"):
        flower.Paillier(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="a threshold key of one holder"):
        flower.Paillier(threshold.deal(*SAFE, holders=1, threshold=1)[0])
