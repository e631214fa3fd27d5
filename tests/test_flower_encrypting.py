"""What an encrypting client sends is its clipped update under encryption and nothing else; where it cannot, nothing leaves."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import raising
from flower_arms import record, returning
from hubbub._util import strict_json
from hubbub.flower import clipping_mod, encrypting_mod, noising_mod
from hubbub.flower.local_grid import received
from hubbub.flower.messages import encrypted_vector
from hubbub.flower.mods import App, Mod
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.protocol import Message as Encrypted
from paillier_nodes import SIZE, agreed, dealt, owner

NODE = 7
# A clip norm of 1 has 2^14 steps on a lattice of 14 bits.
STEP = 2.0**-14
SENT = {"w": np.zeros((2, 2), dtype=np.float32), "b": np.zeros(1)}
TRAINED = {"w": np.array([[0.5, -0.25], [3 * STEP, 0]], dtype=np.float32), "b": np.array([-0.125])}
IN_STEPS = [8192, -4096, 3, 0, -2048]
MODS = [encrypting_mod, clipping_mod]
NOISED = {"dpfedavg_noise_stddev": 0.5}


pytestmark = pytest.mark.usefixtures("in_a_task")


def told(agreement: Agreement | None = None, round_index: int = 0, **others: Any) -> dict[str, Any]:
    record = strict_json.canonical((agreement or agreed(owner().public_key)).record())
    lattice = {"dpfedavg_clip_norm": 1.0, "dpfedavg_lattice_bits": 14}
    config = {"hubbub_agreement": record, "hubbub_round_index": round_index, **lattice, **others}
    return {name: value for name, value in config.items() if value is not None}


def a_context(**node_config: Any) -> Context:
    return Context(run_id=1, node_id=NODE, node_config=node_config, state=RecordDict(), run_config={})


def ask(
    config: dict[str, Any] | None = None, app: App | None = None, mods: list[Mod] = MODS, context: Context | None = None
) -> Message:
    """The reply of a real ClientApp with these mods."""
    client = ClientApp(mods=mods)
    client.train()(app or returning(TRAINED))
    content = RecordDict({"arrays": record(SENT), "config": ConfigRecord(told() if config is None else config)})
    return client(Message(content, NODE, "train", group_id="g"), context or a_context())


def opened(reply: Message, agreement: Agreement | None = None) -> list[int]:
    """What the owner of the key finds in a contribution, in steps."""
    assert not reply.has_error(), reply.error.reason
    agreement = agreement or agreed(owner().public_key)
    sent = Encrypted.from_bytes(encrypted_vector(reply.content), 2048, "a client", at_most=100)
    assert (sent.sender, sent.agreement) == (str(NODE), agreement.digest)
    plain = owner().decrypt(owner().public_key.ciphertext(list(sent.integers)))
    return agreement.packing.unpack_steps(plain, 1).tolist()


def reason(reply: Message) -> str:
    """Why nothing was sent; with an error there is no content."""
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.code == 6
    return reply.error.reason


def test_the_owner_of_the_key_finds_the_update_in_whole_steps_of_the_lattice() -> None:
    assert opened(ask()) == IN_STEPS


def test_a_reply_has_nothing_but_ciphertexts_whatever_the_app_returned() -> None:
    said = {"loss": MetricRecord({"my-loss": 0.625}), "notes": ConfigRecord({"patient": "Ada"})}
    app = returning(TRAINED, **said)
    reply = ask(app=app, mods=[encrypting_mod])
    content = received(reply.content)
    assert {name: dict(record) for name, record in content.metric_records.items()} == {"metrics": {"num-examples": 1}}
    assert [list(record) for record in content.config_records.values()] == [["hubbub_encrypted"]]
    assert not content.array_records
    everything = b"".join(record.deflate() for record in content.values())
    for clear in (b"my-loss", b"patient", b"Ada", b"NUMPY", *(a.tobytes() for a in TRAINED.values())):
        assert clear not in everything


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=SIZE, max_size=SIZE), st.sampled_from([MODS, [encrypting_mod]]))
def test_what_is_encrypted_is_within_the_clip_norm_exactly_and_of_its_direction(values: list[float], mods: list[Mod]) -> None:
    trained = {"w": np.array(values[:4], dtype=np.float32).reshape(2, 2), "b": np.array(values[4:])}
    steps = opened(ask(app=returning(trained), mods=mods))
    assert sum(step**2 for step in steps) <= 4**14
    norm = math.hypot(*values)
    scale = 1 / max(1.0, norm)
    # Each number is rounded once, and those of a clipped update are moved in for it by half a step each.
    assert steps == pytest.approx([value * scale / STEP for value in values], abs=4)


@pytest.mark.parametrize("mods", [MODS, [encrypting_mod]])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_num_7_num_8_an_update_that_is_not_finite_is_encrypted_as_zero(mods: list[Mod], number: float) -> None:
    assert opened(ask(app=returning({**TRAINED, "b": np.array([number])}), mods=mods)) == [0] * SIZE


def test_noised_steps_of_an_inner_mod_are_encrypted_as_they_are_beyond_what_a_number_alone_may_be() -> None:
    limit = 2**15 - 1
    steps = [limit + 9, -limit - 2000, 5, -limit, 0]
    inside = returning({"w": np.array(steps[:4]).reshape(2, 2), "b": np.array(steps[4:])})
    assert opened(ask(told(**NOISED), inside, [encrypting_mod])) == steps


def test_the_clients_share_of_noise_is_in_what_is_encrypted() -> None:
    replies = [opened(ask(told(**NOISED), mods=[encrypting_mod, noising_mod, clipping_mod])) for _ in range(3)]
    differences = np.array(replies) - np.array(IN_STEPS)
    # Discrete Gaussian of standard deviation 2^13; that 15 of them are below 100 in the mean has a chance below 1e-12.
    assert float(np.abs(differences).mean()) > 100
    assert int(np.abs(differences).max()) < 13 * 2**13


@pytest.mark.parametrize("mods", [MODS, [encrypting_mod]])
def test_the_indicator_is_the_last_number_and_moves_it_by_half_its_scale(mods: list[Mod]) -> None:
    agreement = agreed(owner().public_key, size=SIZE + 1)
    counted = {"dpfedavg_adaptive_clip_enabled": True, "dpfedavg_count_scale": 0.5}
    large = {name: 100 * a for name, a in TRAINED.items()}
    said_otherwise = returning(TRAINED, metrics=MetricRecord({"dpfedavg_norm_bit": 0}))
    apps = (returning(TRAINED), returning(large), said_otherwise)
    replies = [ask(told(agreement, **counted), app, mods) for app in apps]
    # The joint clip norm is above 1 and below 2, so that the step is the same; a quarter is half of the scale.
    assert [opened(reply, agreement)[-1] * STEP for reply in replies] == [0.25, -0.25, -0.25]


NEVER = raising(AssertionError("the app must not be asked"))


def _other_key() -> Agreement:
    return agreed(dealt()[0].public_key)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: told(hubbub_agreement=None), "no 'hubbub_agreement'"),
        (lambda: told(hubbub_agreement=b"{}"), "of another version"),
        (lambda: told(hubbub_agreement=bytes(20_000)), "20000 bytes"),
        (lambda: told(hubbub_agreement=strict_json.canonical({**agreed(owner().public_key).record(), "n": "ff"})), "8 bits"),
        (lambda: told(hubbub_round_index=None), "hubbub_round_index"),
        (lambda: told(dpfedavg_clip_norm=None), "no 'dpfedavg_clip_norm'"),
        (lambda: told(dpfedavg_lattice_bits=15), "bits hold 32767"),
        (lambda: told(dpfedavg_adaptive_clip_enabled=True), "how the indicator enters the sum is missing"),
        (lambda: told(dpfedavg_adaptive_clip_enabled=True, dpfedavg_count_scale=0.5), "on 5 numbers, .* has 6"),
        (lambda: told(agreed(owner().public_key, size=4)), "on 4 numbers, .* has 5"),
    ],
)
def test_before_the_app_trains_a_server_is_refused_that_says(config: Callable[[], dict[str, Any]], message: str) -> None:
    why = reason(ask(config(), NEVER, [encrypting_mod]))
    assert re.search(message, why), why


def test_a_client_encrypts_for_one_key_one_run_one_agreement_and_each_round_once() -> None:
    context = a_context()
    assert opened(ask(told(round_index=3), context=context)) == IN_STEPS
    mine = owner().public_key
    for config, message in (
        (told(_other_key(), 4), "before it was"),
        (told(agreed(mine, run="another"), 4), "the server's run is 'another', before it was 'a run'"),
        (told(agreed(mine, min_contributions=1), 4), "terms of secure aggregation are others"),
        (told(round_index=4, **NOISED), "whether clients add noise is otherwise than before"),
        (told(round_index=3), "has answered round 4 or a later one already"),
        (told(round_index=0), "has answered round 1 or a later one already"),
    ):
        assert message in reason(ask(config, NEVER, [encrypting_mod], context))
    assert opened(ask(told(round_index=4), context=context)) == IN_STEPS


def test_a_round_counts_as_answered_when_it_begins() -> None:
    context = a_context()
    reason(ask(app=raising(RuntimeError("no memory")), context=context))
    assert "has answered round 1" in reason(ask(context=context))


def test_the_key_of_a_nodes_own_configuration_is_the_only_one_it_encrypts_under() -> None:
    mine = owner().public_key.key_id
    assert opened(ask(context=a_context(**{"paillier-key-id": mine}))) == IN_STEPS
    why = reason(ask(told(_other_key()), NEVER, [encrypting_mod], a_context(**{"paillier-key-id": mine})))
    assert mine in why
    assert "this node encrypts under" in why


@pytest.mark.parametrize(
    ("mods", "others"),
    [
        ([encrypting_mod, clipping_mod], NOISED),
        ([clipping_mod, encrypting_mod], {}),
        ([noising_mod, encrypting_mod], NOISED),
        ([noising_mod, encrypting_mod, clipping_mod], NOISED),
        ([noising_mod, clipping_mod, encrypting_mod], {}),
    ],
)
def test_mods_in_a_wrong_order_or_missing_send_nothing(mods: list[Mod], others: dict[str, Any]) -> None:
    reason(ask(told(**others), mods=mods))


WORDS = "patient Ada weighs 63.5"


@pytest.mark.parametrize(
    "app",
    [
        raising(ValueError(WORDS)),
        lambda msg, context: Message(Error(2, WORDS), reply_to=msg),
        lambda msg, context: WORDS,
        lambda msg, context: Message(RecordDict(), reply_to=msg),
        returning({WORDS: np.ones(5)}),
        returning({"w": np.full((2, 2), 63.5)}),
        returning({**TRAINED, "b": np.full(3, 63.5)}),
        returning(TRAINED, second=ArrayRecord({WORDS: Array(np.ones(2))})),
    ],
)
@pytest.mark.parametrize("mods", [MODS, [encrypting_mod]])
def test_where_the_app_fails_not_a_word_of_it_reaches_the_server(app: Any, mods: list[Mod]) -> None:
    why = reason(ask(app=app, mods=mods))
    assert not any(word in why for word in ("Ada", "63", "patient"))
    assert "log" in why


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({"arrays": ArrayRecord({"w": Array(np.ones(3))})}),
        RecordDict({"arrays": ArrayRecord(), "encrypted": ConfigRecord({"hubbub_encrypted": b"x"})}),
        RecordDict({"encrypted": ConfigRecord({"hubbub_encrypted": "x"})}),
        RecordDict({"one": ConfigRecord({"hubbub_encrypted": b"x"}), "two": ConfigRecord({"hubbub_encrypted": b"x"})}),
        RecordDict(),
    ],
)
def test_the_server_takes_no_reply_that_holds_arrays_or_not_one_encrypted_vector(content: RecordDict) -> None:
    with pytest.raises(ValueError, match="encrypting_mod"):
        encrypted_vector(content)
