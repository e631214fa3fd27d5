"""What a client sends is clipped, and hidden where the server leaves that to clients; what cannot be kept is refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from conftest import raising
from flower_arms import record, returning
from hubbub.flower.mods import Mod, clipping_mod, noising_mod, timer_mod

Numbers = npt.NDArray[Any]
Model = dict[str, Numbers]

# A statistical test below fails by chance once in a million runs.
FALSE_ALARM = 1e-6
# What is promised of the norm of an update as the server computes it.
ROUNDING = 1 + 2.0**-20
CLIP = {"dpfedavg_clip_norm": 1.0}
COUNTED = {**CLIP, "dpfedavg_adaptive_clip_enabled": True}
# In the unit of the update; the lattice of clip norm 1 has steps of 2^-24.
NOISE = {**CLIP, "dpfedavg_noise_stddev": 0.5}
BOTH = {**COUNTED, "dpfedavg_noise_stddev": 0.5, "dpfedavg_count_scale": 0.25}
BOTH_MODS = [noising_mod, clipping_mod]


pytestmark = pytest.mark.usefixtures("in_a_task")


def train_message(model: Model, config: dict[str, Any] | None, message_type: str = "train") -> Message:
    content = RecordDict({"arrays": record(model)})
    if config is not None:
        content["config"] = ConfigRecord(config)
    return Message(content, 7, message_type, group_id="g")


def a_context() -> Context:
    return Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})


def ask(mods: list[Mod], sent: Model, trained: Model, config: dict[str, Any] | None = CLIP, **records: Any) -> Message:
    """The reply of a real ClientApp with these mods."""
    app = ClientApp(mods=mods)
    app.train()(returning(trained, **records))
    return app(train_message(sent, config), a_context())


def returned(reply: Message) -> Model:
    assert not reply.has_error(), reply.error.reason
    (record,) = reply.content.array_records.values()
    return {name: array.numpy() for name, array in record.items()}


def norm_of_update(after: Model, before: Model) -> float:
    """As the server computes it: float64, over all arrays that both hold as floating numbers."""
    moved = (after[name].astype(np.float64) - before[name].astype(np.float64) for name in before)
    return math.sqrt(math.fsum(float((array**2).sum()) for array in moved))


def bit_of(reply: Message) -> Any:
    return next(iter(reply.content.metric_records.values()))["dpfedavg_norm_bit"]


def steps_of(reply: Message) -> Numbers:
    return np.concatenate([array.reshape(-1) for array in returned(reply).values()])


@st.composite
def _models(draw: st.DrawFn) -> tuple[Model, Model, float]:
    """A model, what became of it, and a clip norm: any dtype, any shape, weights up to 1000, updates of any size."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    before, after = {}, {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 3), (40,), (0,), (300,)])) if i else (5,)
        dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
        size = 10.0 ** draw(st.integers(-4, 3))
        before[f"w{i}"] = np.asarray(generator.normal(scale=size, size=shape)).astype(dtype)
        moved = before[f"w{i}"] + np.asarray(generator.normal(scale=10.0 ** draw(st.integers(-6, 3)), size=shape))
        after[f"w{i}"] = moved.astype(draw(st.sampled_from([dtype, dtype, "float64"])))
    return before, after, 10.0 ** draw(st.integers(-4, 4))


@settings(max_examples=100, deadline=None)
@given(_models())
def test_num_10_shp_4_no_reply_holds_an_update_beyond_the_clip_norm_at_any_precision(case: tuple[Model, Model, float]) -> None:
    before, after, clip_norm = case
    reply = ask([clipping_mod], before, after, {"dpfedavg_clip_norm": clip_norm})
    seen = returned(reply)
    assert norm_of_update(seen, before) <= clip_norm * ROUNDING
    assert {name: (a.dtype, a.shape) for name, a in seen.items()} == {name: (a.dtype, a.shape) for name, a in after.items()}
    if norm_of_update(after, before) <= clip_norm / ROUNDING:
        assert all(np.array_equal(seen[name], after[name]) for name in after)


def test_shp_1_an_array_without_axes_is_clipped_and_stays_an_array() -> None:
    record = ask([clipping_mod], {"scale": np.array(2.5, np.float32)}, {"scale": np.array(99.0, np.float32)}).content["arrays"]
    assert record["scale"].shape == ()
    assert record["scale"].numpy() == pytest.approx(3.5, abs=1e-5)


@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf])
def test_num_7_num_8_an_update_that_is_not_finite_becomes_zero(hostile: float) -> None:
    before = {"w": np.arange(4, dtype=np.float32), "v": np.ones(2)}
    reply = ask([clipping_mod], before, {"w": np.array([0, hostile, 2, 3], np.float32), "v": np.zeros(2)}, COUNTED)
    assert all(np.array_equal(returned(reply)[name], before[name]) for name in before)
    assert bit_of(reply) == 0


def test_num_9_a_client_without_data_sends_a_zero_update() -> None:
    before = {"w": np.arange(4, dtype=np.float32)}
    reply = ask([clipping_mod], before, before, COUNTED)
    assert np.array_equal(returned(reply)["w"], before["w"])
    assert bit_of(reply) == 1


def test_shp_2_shp_3_buffers_are_left_as_the_client_returned_them_and_count_for_nothing() -> None:
    before = {"w": np.zeros(2), "bn.num_batches_tracked": np.array(3), "bn.running_var": np.ones(2), "steps": np.array([1, 2])}
    after = dict(zip(before, (np.array([0.5, 0]), np.array(99), np.full(2, 50.0), np.array([7, 8])), strict=True))
    for clip_norm, expected in ((1.0, 0.5), (0.25, 0.25)):
        seen = returned(ask([clipping_mod], before, after, {"dpfedavg_clip_norm": clip_norm}))
        assert norm_of_update({"w": seen["w"]}, {"w": before["w"]}) == pytest.approx(expected, rel=2**-19)
        for name in list(before)[1:]:
            assert np.array_equal(seen[name], after[name])
            assert seen[name].dtype == after[name].dtype
        assert list(seen) == list(after)


def test_shp_6_arrays_are_matched_by_name_not_by_place() -> None:
    before = {"a": np.full(3, 10.0), "b": np.full(3, -10.0)}
    seen = returned(ask([clipping_mod], before, {"b": np.full(3, -9.9), "a": np.full(3, 10.1)}))
    assert list(seen) == ["b", "a"]
    np.testing.assert_array_equal(seen["a"], np.full(3, 10.1))
    np.testing.assert_array_equal(seen["b"], np.full(3, -9.9))


def test_what_was_sent_is_kept_before_the_app_can_change_it() -> None:
    def app(msg: Message, context: Context) -> Message:
        msg.content["config"]["dpfedavg_clip_norm"] = 1e9
        msg.content["arrays"]["w"] = Array(np.full(4, 100.0))
        return Message(msg.content, reply_to=msg)

    message = train_message({"w": np.zeros(4)}, {**CLIP})
    assert norm_of_update(returned(clipping_mod(message, a_context(), app)), {"w": np.zeros(4)}) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(("length", "bit"), [(0.999, 1), (1.0 - 1e-5, 1), (1.0 + 1e-5, 0), (1.001, 0), (1e6, 0), (0.0, 1)])
def test_the_bit_says_whether_the_norm_was_at_most_the_clip_norm(length: float, bit: int) -> None:
    update = length * np.array([0.6, 0.0, 0.8])
    reply = ask([clipping_mod], {"w": np.zeros(3)}, {"w": update}, COUNTED)
    assert bit_of(reply) == bit
    assert type(bit_of(reply)) is int


@pytest.mark.parametrize("config", [None, {}, CLIP, BOTH])
@pytest.mark.parametrize("message_type", ["evaluate", "query", "evaluate.slow", "query.train"])
def test_messages_that_do_not_train_pass_untouched(message_type: str, config: dict[str, Any] | None) -> None:
    seen = []

    def app(msg: Message, context: Context) -> Message:
        seen.append(msg)
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=msg)

    registered = ClientApp(mods=[timer_mod(60.0), noising_mod, clipping_mod])
    category, _, action = message_type.partition(".")
    getattr(registered, category)(*([action] if action else []))(app)
    message = train_message({"w": np.zeros(3)}, config, message_type)
    for _ in range(2):
        assert dict(registered(message, a_context()).content["metrics"]) == {"loss": 0.5}
    assert seen[0] is message


def test_named_training_actions_are_clipped_too() -> None:
    app = ClientApp(mods=[clipping_mod])
    app.train("last_layer")(returning({"w": np.full(4, 5.0)}))
    reply = app(train_message({"w": np.zeros(4)}, CLIP, "train.last_layer"), a_context())
    assert norm_of_update(returned(reply), {"w": np.zeros(4)}) == pytest.approx(1, rel=1e-5)


def refused(reply: Message, *words: str) -> None:
    assert reply.has_error()
    assert not reply.has_content()
    assert reply.error.code == 6
    assert all(word in str(reply.error.reason) for word in words), reply.error.reason


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, ["dpfedavg_clip_norm", "no"]),
        ({"dpfedavg_clip_norm": 0.0}, ["0.0", "above 0"]),
        ({"dpfedavg_clip_norm": math.nan}, ["nan", "finite"]),
        ({"dpfedavg_clip_norm": "1"}, ["'1'", "number"]),
        ({**CLIP, "dpfedavg_adaptive_clip_enabled": 1}, ["dpfedavg_adaptive_clip_enabled = 1", "True or False"]),
        ({**NOISE, "dpfedavg_noise_stddev": 0.0}, ["dpfedavg_noise_stddev = 0.0", "above 0"]),
        ({**COUNTED, "dpfedavg_noise_stddev": 0.5}, ["dpfedavg_count_scale", "no"]),
        ({**BOTH, "dpfedavg_count_scale": -1.0}, ["dpfedavg_count_scale = -1.0", "above 0"]),
    ],
)
def test_a_config_that_bounds_nothing_is_refused_before_training(config: dict[str, Any] | None, words: list[str]) -> None:
    app = ClientApp(mods=BOTH_MODS)
    app.train()(raising(AssertionError("it trained")))
    refused(app(train_message({"w": np.zeros(3)}, config), a_context()), *words)


@pytest.mark.parametrize("config", [CLIP, NOISE], ids=["clipped", "noised"])
@pytest.mark.parametrize(
    ("trained", "words"),
    [
        ({"w": np.zeros(3)}, ["no array 'v'"]),
        ({"w": np.zeros(3), "v": np.zeros(2), "u": np.zeros(2)}, ["'u'"]),
        ({"w": np.zeros(3), "v": np.zeros((2, 1))}, ["'v'", "(2, 1)"]),
        ({"w": np.zeros(3), "v": np.zeros(2, np.int64)}, ["'v'", "int64"]),
    ],
)
def test_shp_5_shp_6_a_reply_of_other_arrays_is_refused_and_never_sent_as_it_is(
    trained: Model, words: list[str], config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """For a reason that the server reads; where the client adds noise, the client's log alone."""
    reply = ask(BOTH_MODS, {"w": np.zeros(3), "v": np.zeros(2)}, trained, config)
    if config is CLIP:
        refused(reply, *words)
        return
    refused(reply, "see the client's log")
    assert all(word in caplog.text and word not in reply.error.reason for word in words)


@pytest.mark.parametrize("mods", [[clipping_mod], [clipping_mod, noising_mod]], ids=["alone", "wrong order"])
@pytest.mark.parametrize("config", [NOISE, BOTH], ids=["fixed", "adaptive"])
def test_clipping_without_a_noising_mod_is_refused_where_clients_add_noise(mods: list[Mod], config: dict[str, Any]) -> None:
    refused(ask(mods, {"w": np.zeros(3)}, {"w": np.ones(3)}, config), "mods=[noising_mod, clipping_mod]", "outermost")


def test_a_bit_that_is_none_is_refused() -> None:
    metrics = MetricRecord({"dpfedavg_norm_bit": 5})
    for mods, config in (([clipping_mod], COUNTED), ([noising_mod], BOTH)):
        refused(ask(mods, {"w": np.zeros(3)}, {"w": np.ones(3)}, config, metrics=metrics), "dpfedavg_norm_bit: must be 0 or 1")


def _replies_with_an_error(msg: Message, _: Context) -> Message:
    return Message(Error(code=99, reason="target 17 is no class"), reply_to=msg)


def test_an_error_of_the_app_passes_where_the_server_adds_the_noise() -> None:
    app = ClientApp(mods=BOTH_MODS)
    app.train()(_replies_with_an_error)
    reply = app(train_message({"w": np.zeros(3)}, CLIP), a_context())
    assert (reply.error.code, reply.error.reason) == (99, "target 17 is no class")


@pytest.mark.parametrize("app_says", [_replies_with_an_error, raising(IndexError("target 17 is no class"))])
def test_what_an_app_says_of_its_failure_does_not_leave_without_noise(
    app_says: Callable[[Message, Context], Message], caplog: pytest.LogCaptureFixture
) -> None:
    for mods in (BOTH_MODS, [noising_mod]):
        app = ClientApp(mods=mods)
        app.train()(app_says)
        reply = app(train_message({"w": np.zeros(3)}, NOISE), a_context())
        assert reply.error.code == 6
        assert not set("179") & set(reply.error.reason)
        assert "see the client's log" in reply.error.reason
        assert "target 17" in caplog.text


def test_a_share_has_the_mean_and_the_deviation_that_were_asked_for() -> None:
    """Mean and variance of 2¹⁷ normal numbers, each within its own quantile: a false alarm in a million for both together."""
    count = 2**17
    update = np.zeros(count)
    update[0], update[1:] = 0.9, 1e-4
    for mods in (BOTH_MODS, [noising_mod]):
        steps = steps_of(ask(mods, {"w": np.zeros(count)}, {"w": update}, NOISE))
        assert steps.dtype == np.int64
        # Encoding rounds by half a step, of 8 million in a deviation.
        noise = steps - update * 2**24
        assert abs(noise.mean()) < stats.norm.isf(FALSE_ALARM / 8) * 0.5 * 2**24 / math.sqrt(count)
        square = ((noise / (0.5 * 2**24)) ** 2).sum()
        assert stats.chi2.ppf(FALSE_ALARM / 8, count) < square < stats.chi2.isf(FALSE_ALARM / 8, count)


def test_what_is_hidden_is_the_update_clipped_to_the_clip_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.flower.mods.discrete_gaussian", lambda key, stddev, count: np.zeros(count, np.int64))
    before = {"a": np.full((2, 2), 7.0, np.float32), "b": np.array(1.0)}
    after = {"b": np.array(1.0 + 12.0), "a": before["a"] + np.array([[3, 0], [4, 0]], np.float32)}
    for mods in (BOTH_MODS, [noising_mod]):
        seen = returned(ask(mods, before, after, NOISE))
        assert {name: (a.shape, a.dtype) for name, a in seen.items()} == {"a": ((2, 2), np.int64), "b": ((), np.int64)}
        assert list(seen) == ["a", "b"]
        np.testing.assert_allclose(seen["a"] / 2**24, np.array([[3, 0], [4, 0]]) / 13, rtol=2**-19)
        np.testing.assert_allclose(seen["b"] / 2**24, 12 / 13, rtol=2**-19)
        assert sum(int(step) ** 2 for step in seen["a"].flat) + int(seen["b"]) ** 2 <= 2**48


@pytest.mark.parametrize(
    ("stddev", "clip_norm", "steps"),
    [(0.5, 1.0, 2**23), (0.5 + 2**-40, 1.0, 2**23 + 1), (2**-30, 1.0, 1), (2**-24 * 3.2, 1.5, 4), (3 * 2**-23, 3.0, 3)],
)
def test_a_share_is_rounded_up_to_steps(stddev: float, clip_norm: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def spy(key: bytes, stddev: int, count: int) -> npt.NDArray[np.int64]:
        drawn.append((key, stddev, count))
        return np.zeros(count, np.int64)

    monkeypatch.setattr("hubbub.flower.mods.discrete_gaussian", spy)
    config = {"dpfedavg_clip_norm": clip_norm, "dpfedavg_noise_stddev": stddev}
    for _ in range(3):
        ask(BOTH_MODS, {"w": np.zeros(3)}, {"w": np.zeros(3)}, config)
    assert [(stddev, count) for _, stddev, count in drawn] == [(steps, 3)] * 3
    assert len({key for key, _, _ in drawn}) == 3
    assert all(len(key) == 32 for key, _, _ in drawn)


@pytest.mark.parametrize("mods", [BOTH_MODS, [noising_mod]], ids=["both", "noising alone"])
@pytest.mark.parametrize(("length", "bit"), [(0.5, 1), (5.0, 0), (math.nan, 0), (0.0, 1)])
def test_the_indicator_is_one_more_number_of_the_noised_vector(
    mods: list[Mod], length: float, bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With count scale s the bit b enters as s·(b − 1/2), in steps of the lattice of norm √(C² + s²/4)."""
    monkeypatch.setattr("hubbub.flower.mods.discrete_gaussian", lambda key, stddev, count: np.full(count, 1000, np.int64))
    reply = ask(mods, {"w": np.zeros(2)}, {"w": np.array([length, 0])}, BOTH)
    assert bit_of(reply) == pytest.approx(0.25 * (bit - 0.5) * 2**24 + 1000, abs=8)
    assert type(bit_of(reply)) is int
    length = 0 if math.isnan(length) else min(length, 1)
    np.testing.assert_allclose(returned(reply)["w"], [length * 2**24 + 1000, 1000], atol=40)


def test_the_noise_on_the_indicator_is_that_on_the_update() -> None:
    """100 draws: their sum of squares is chi-square; a false alarm in a million."""
    count = 100
    drawn = [bit_of(ask(BOTH_MODS, {"w": np.zeros(1)}, {"w": np.zeros(1)}, BOTH)) for _ in range(count)]
    noise = (np.array(drawn) - 0.125 * 2**24) / (0.5 * 2**24)
    assert stats.chi2.ppf(FALSE_ALARM / 2, count) < (noise**2).sum() < stats.chi2.isf(FALSE_ALARM / 2, count)


@pytest.mark.parametrize("mods", [BOTH_MODS, [noising_mod]], ids=["both", "noising alone"])
@pytest.mark.parametrize("config", [NOISE, BOTH], ids=["fixed", "adaptive"])
def test_nothing_exact_leaves_with_the_noise(config: dict[str, Any], mods: list[Mod]) -> None:
    before = {"w": np.zeros(8), "bn.running_mean": np.zeros(8), "bn.num_batches_tracked": np.array(0), "b": np.zeros(())}
    after = dict(zip(before, (np.full(8, 0.125), np.full(8, 0.7), np.array(77), np.array(0.3)), strict=True))
    secrets: dict[str, Any] = {
        "metrics": MetricRecord({"loss": 0.123, "num-examples": 4711, "weights": [0.125] * 8}),
        "more": MetricRecord({"accuracy": 0.456}),
        "notes": ConfigRecord({"update": after["w"].tobytes(), "word": "secret"}),
    }
    reply = ask(mods, before, after, config, **secrets)
    assert {name: type(record) for name, record in reply.content.items()} == {"arrays": ArrayRecord, "metrics": MetricRecord}
    assert list(reply.content["arrays"]) == ["w", "b"]
    numbers = dict(reply.content["metrics"])
    assert numbers.pop("num-examples") == 1
    bit = numbers.pop("dpfedavg_norm_bit", None)
    assert not numbers
    assert (bit is not None) == ("dpfedavg_count_scale" in config)
    assert bit not in (0, 1, round(0.125 * 2**24))
    exact = {value for array in after.values() for value in (*array.flat, *(array * 2**24).flat)}
    assert not exact & {int(step) for step in steps_of(reply)}
    # Nor in what the message carries beside its records.
    assert reply.metadata.reply_to_message_id == ""
    assert (reply.metadata.dst_node_id, reply.metadata.group_id, reply.metadata.message_type) == (1, "g", "train")


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def timed(clock: Clock, pause: float = 60.0) -> Callable[[Context], Message]:
    app = ClientApp(mods=[timer_mod(pause, clock=clock), clipping_mod])
    app.train()(returning({"w": np.zeros(3)}))
    return lambda context: app(train_message({"w": np.zeros(3)}, CLIP), context)


def test_a_client_does_not_train_again_before_its_pause_is_over() -> None:
    clock, context = Clock(), a_context()
    train = timed(clock)
    assert not train(context).has_error()
    clock.now = 1059.0
    refused(train(context), "took part 59 s ago", "60 s")
    # A refusal is not taking part.
    clock.now = 1060.0
    assert not train(context).has_error()
    clock.now = 1119.0
    refused(train(context), "took part 59 s ago")


def test_a_clock_that_goes_back_opens_nothing() -> None:
    clock, context = Clock(), a_context()
    train = timed(clock)
    train(context)
    for now in (999.0, 0.0, -1e9):
        clock.now = now
        refused(train(context), "the clock went back")
    clock.now = 1060.0
    assert not train(context).has_error()


def test_taking_part_counts_from_the_beginning_even_if_the_app_fails() -> None:
    clock, context = Clock(), a_context()
    app = ClientApp(mods=[timer_mod(60.0, clock=clock)])
    app.train()(raising(OSError("the disk is full")))
    with pytest.raises(OSError, match="full"):
        app(train_message({"w": np.zeros(3)}, CLIP), context)
    refused(app(train_message({"w": np.zeros(3)}, CLIP), context), "took part")
