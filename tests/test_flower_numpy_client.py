"""A client of the legacy API sends what the mods would send."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from scipy import stats

from hubbub.errors import ConfigError
from hubbub.flower import DPFedAvgAdaptive, DPNumPyClient, LocalGrid

Numbers = npt.NDArray[Any]

# A statistical test below fails by chance once in a million runs.
FALSE_ALARM = 1e-6
CLIP = {"dpfedavg_clip_norm": 1.0}
NOISE = {**CLIP, "dpfedavg_noise_stddev": 0.5}


class Trainer(NumPyClient):
    """Returns what it was made with, or what a function makes of the arrays that it is sent."""

    def __init__(self, trained: Any, metrics: dict[str, Any] | None = None) -> None:
        self.trained, self.metrics, self.configs = trained, metrics or {}, []

    def fit(self, parameters: list[Numbers], config: dict[str, Any]) -> Any:
        self.configs.append(config)
        return self.trained(parameters) if callable(self.trained) else self.trained, 12, self.metrics


def test_the_update_is_clipped_as_one_vector() -> None:
    before = [np.zeros((2, 2)), np.zeros(()), np.zeros(0)]
    after = [np.array([[3.0, 0.0], [4.0, 0.0]]), np.array(12.0), np.zeros(0)]
    arrays, examples, metrics = DPNumPyClient(Trainer(after, {"loss": 0.5})).fit(before, CLIP)
    # 3, 4 and 12 are the sides of a box of diagonal 13.
    for array, whole in zip(arrays, after, strict=True):
        np.testing.assert_allclose(array, whole / 13, rtol=2**-19)
        assert isinstance(array, np.ndarray)
        assert array.shape == whole.shape
    assert (examples, metrics) == (12, {"loss": 0.5})


def test_a_client_that_trains_in_place_is_clipped_against_what_was_sent() -> None:
    before = [np.zeros(4, np.float32), np.ones(3, np.float32)]
    sent = [array.copy() for array in before]
    in_place = Trainer(lambda sent: [np.add(array, 100, out=array) for array in sent])
    arrays, _, _ = DPNumPyClient(in_place).fit(sent, CLIP)
    moved = np.concatenate([after - was.astype(float) for after, was in zip(arrays, before, strict=True)])
    assert np.linalg.norm(moved) == pytest.approx(1, rel=1e-6)


def test_num_7_num_8_num_9_a_zero_update_and_one_that_is_not_finite_come_back_as_zero() -> None:
    before = [np.arange(3, dtype=np.float32)]
    for trained, bit in (([before[0].copy()], 1), ([np.array([0, math.nan, 2], np.float32)], 0)):
        arrays, _, metrics = DPNumPyClient(Trainer(trained)).fit(before, {**CLIP, "dpfedavg_adaptive_clip_enabled": True})
        assert np.array_equal(arrays[0], before[0])
        assert metrics == {"dpfedavg_norm_bit": bit}


def test_shp_2_integer_arrays_pass_and_count_for_nothing() -> None:
    before, after = [np.zeros(2), np.array(3), np.array([1, 2])], [np.array([9.0, 0]), np.array(99), np.array([7, 8])]
    arrays, _, _ = DPNumPyClient(Trainer(after)).fit(before, CLIP)
    np.testing.assert_allclose(arrays[0], [1, 0], rtol=2**-19)
    assert arrays[1] == 99
    assert arrays[1].dtype == np.int64
    assert np.array_equal(arrays[2], [7, 8])


def test_shp_1_plain_numbers_in_the_place_of_arrays_are_arrays() -> None:
    arrays, _, _ = DPNumPyClient(Trainer([5.0])).fit([np.zeros(())], CLIP)
    assert isinstance(arrays[0], np.ndarray)
    assert arrays[0] == pytest.approx(1, rel=2**-19)


def test_a_share_of_noise_has_the_deviation_that_was_asked_for_and_hides_all_else() -> None:
    """The sum of squares of 2¹⁵ normal numbers is chi-square; a false alarm in a million."""
    count = 2**15
    update = np.zeros(count, np.float32)
    update[0] = 0.5
    trainer = Trainer([update, np.array(99), np.array(0.25)], {"loss": 0.125})
    arrays, examples, metrics = DPNumPyClient(trainer).fit([np.zeros(count, np.float32), np.array(3), np.zeros(())], NOISE)
    assert [(a.dtype, a.shape) for a in arrays] == [(np.int64, (count,)), (np.int64, ()), (np.int64, ())]
    # The client's counter does not leave: the one that was sent does.
    assert (arrays[1], (examples, metrics)) == (3, (1, {}))
    noise = (arrays[0] / 2**24 - update) / 0.5
    assert stats.chi2.ppf(FALSE_ALARM / 2, count) < (noise**2).sum() < stats.chi2.isf(FALSE_ALARM / 2, count)
    # Whoever adds the noise takes the request out, so that no wrapped client adds a second share.
    assert trainer.configs == [CLIP]


@pytest.mark.parametrize("config", [CLIP, NOISE])
@pytest.mark.parametrize(
    "trained",
    [[np.zeros(2)], [np.zeros(2), np.zeros(3), np.zeros(1)], [np.zeros(3), np.zeros(2)], [np.zeros(2), np.zeros(3, int)]],
)
def test_shp_5_shp_6_other_arrays_than_were_sent_are_refused(trained: list[Numbers], config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"arrays|float"):
        DPNumPyClient(Trainer(trained)).fit([np.zeros(2), np.zeros(3)], config)


def test_what_a_client_says_of_its_failure_does_not_leave_without_noise(caplog: pytest.LogCaptureFixture) -> None:
    failing = DPNumPyClient(Trainer(lambda sent: {}["target 17"]))
    with pytest.raises(RuntimeError, match="see the client's log") as failed:
        failing.fit([np.zeros(3)], NOISE)
    assert "17" not in str(failed.value)
    assert failed.value.__suppress_context__
    assert "target 17" in caplog.text
    with pytest.raises(KeyError, match="target 17"):
        failing.fit([np.zeros(3)], CLIP)


@pytest.mark.parametrize("more", [{}, {"noise_at": "clients", "min_survivors": 3}])
def test_an_apps_train_that_calls_it_takes_part_with_a_share_of_noise_and_without(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = ClientApp()
    update = np.array([3.0, 0.0, 4.0], np.float32)

    class Named(FedAvg):
        kind = "train.of_numpy"

        def configure_train(self, *given: Any) -> Iterable[Message]:
            for message in super().configure_train(*given):
                message.metadata.message_type = self.kind
                yield message

    @app.train("of_numpy")
    def train(message: Message, context: Context) -> Message:
        sent = message.content["arrays"]
        client = DPNumPyClient(Trainer([array.numpy() + (update if name == "w" else 1) for name, array in sent.items()]))
        arrays, examples, metrics = client.fit(sent.to_numpy_ndarrays(), dict(message.content["config"]))
        replied = ArrayRecord({name: Array(array) for name, array in zip(sent, arrays, strict=True)})
        content = RecordDict({"arrays": replied, "metrics": MetricRecord({"num-examples": examples, **metrics})})
        return Message(content, reply_to=message)

    strategy = DPFedAvgAdaptive(
        Named(fraction_evaluate=0.0, min_available_nodes=1), noise_multiplier=0.02, initial_clip_norm=1.0,
        num_sampled_clients=4, clip_count_stddev=0.1, buffers="keep", **more,
    )  # fmt: skip
    start = ArrayRecord({"w": Array(np.zeros(3, np.float32)), "batches": Array(np.array(7))})
    with pytest.raises(ValueError, match=r"timeout = 0: must be above 0"):
        strategy.start(LocalGrid(app, num_nodes=4), start, num_rounds=1, timeout=0)
    monkeypatch.setattr(Named, "kind", "query")
    with pytest.raises(ConfigError, match=r"sends messages of type 'query'; all must be of one type, 'train'"):
        strategy.start(LocalGrid(app, num_nodes=4), start, num_rounds=1)
    assert strategy.rounds_charged == 0
    monkeypatch.undo()
    result = strategy.start(LocalGrid(app, num_nodes=4), start, num_rounds=1)
    assert result.train_metrics_clientapp[1]["released"] == 1
    # The noise of the mean has a standard deviation of 0.006; the noise on the fraction, all of which were clipped, of 0.03.
    np.testing.assert_allclose(result.arrays["w"].numpy(), update / 5, atol=0.05)
    assert result.arrays["batches"].numpy() == 7
    assert math.log(strategy.clip_norm) == pytest.approx(0.2 * 0.5, abs=0.05)
