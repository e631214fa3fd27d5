"""Separation that devices keep: no device trains in rounds that its pattern does not allow, whatever it forgets."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import hubbub
from hubbub import FixedEpochs, Mechanism, MinSeparation, PoissonSampling
from hubbub.errors import ConfigError
from hubbub.flower import DPFedAvgFixed, LocalGrid, MatrixFactorizationDP, Paillier, clipping_mod, separation_mod
from hubbub.flower.separation import FOLDER, separation_config
from hubbub.ledger.promise import Promise
from hubbub.mechanism.strategies import Identity, toeplitz
from paillier_nodes import dealt

PATTERN = MinSeparation(3, 3)


pytestmark = pytest.mark.usefixtures("in_a_task", "quiet")


class Device:
    """One device with its folder, asked by itself; it knows in which rounds it really trained."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trained = folder, list[int]()

    def asked(self, round_index: object, pattern: MinSeparation = PATTERN, **changed: object) -> str:
        """Why it refuses; empty where it trains."""
        told = {**separation_config(("a" * 64), 0, pattern), "hubbub_round_index": round_index, **changed}
        config = ConfigRecord({name: value for name, value in told.items() if value is not None})  # type: ignore[misc]
        message = Message(RecordDict({"config": config}), 1, "train")
        context = Context(run_id=1, node_id=7, node_config={FOLDER: str(self.folder)}, state=RecordDict(), run_config={})
        reply = separation_mod(message, context, self._train)
        return reply.error.reason if reply.has_error() else ""

    def _train(self, message: Message, context: Context) -> Message:
        self.trained.append(int(message.content.config_records["config"]["hubbub_round_index"]))  # type: ignore[arg-type]
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    def forgets(self) -> None:
        for file in self.folder.glob("*.json"):
            file.unlink()

    def damaged(self, rng: random.Random) -> None:
        for file in self.folder.glob("*.json"):
            content = file.read_bytes()
            file.write_bytes(content[: rng.randrange(len(content))])


def test_prt_11_a_device_takes_part_as_the_pattern_allows(tmp_path: Path) -> None:
    device = Device(tmp_path / "store")
    assert [bool(device.asked(t)) for t in (0, 0, 1, 2, 3, 5, 7, 12)] == [False, True, True, True, False, True, False, True]
    assert device.trained == [0, 3, 7]
    assert "this device took part in round 7, and may join from round 10 on" in Device(tmp_path / "store").asked(9)
    assert "took part in 3 rounds, and may in 3" in device.asked(12)
    # Another run is another matter.
    assert not device.asked(0, hubbub_run="b" * 64)


def test_prt_11_a_device_that_does_not_know_its_past_waits_as_if_it_had_taken_part(tmp_path: Path) -> None:
    device = Device(tmp_path)
    said = "this device does not know whether it took part in round 4, and may join from round 7 on"
    assert said in device.asked(4)
    assert said in device.asked(6)
    # Rounds 0 to 4 leave room for two that it may have taken part in.
    assert device.asked(7) == ""
    assert "took part in 1 rounds, and perhaps in 2 before it kept its history, and may in 3" in device.asked(10)


DAMAGED = '{"known_from":0,"max_participations":3,"min_separation":3,"rounds":[%s],"schema":%d}'


@pytest.mark.parametrize("content", ["", "{}", "[]", DAMAGED % ("5,3", 1), DAMAGED % ("", 2)])
def test_prt_11_a_damaged_record_is_none(content: str, tmp_path: Path) -> None:
    device = Device(tmp_path)
    assert device.asked(0) == ""
    next(tmp_path.glob("*.json")).write_text(content)
    # Nor does it prove that this round is the first that the device is asked for.
    assert "does not know whether it took part in round 0" in device.asked(0)
    next(tmp_path.glob("*.json")).write_text(content)
    assert "does not know whether it took part in round 5" in device.asked(5)
    assert device.asked(8) == ""


@pytest.mark.parametrize("cases", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_prt_11_no_loss_of_the_record_breaks_the_pattern(cases: int, tmp_path: Path) -> None:
    """A device that is asked, forgets and is damaged at random keeps the pattern over all that really happened."""
    trained = 0
    for case in range(cases):
        rng = random.Random(case)  # noqa: S311 # no key
        pattern = MinSeparation(rng.randint(1, 6), rng.randint(1, 8))
        device = Device(tmp_path / str(case))
        for t in range(rng.randint(1, 40)):
            for _ in range(rng.choice((0, 1, 1, 2))):
                # Within a round it is asked by one message, which it answers once.
                if t not in device.trained or rng.random() < 0.5:
                    known = len(device.trained)
                    device.asked(t, pattern)
                    assert len(device.trained) - known <= 1
                if rng.random() < 0.1 and not (t == 0 and device.trained):
                    device.forgets()
                if rng.random() < 0.1:
                    device.damaged(rng)
        assert pattern.allows(device.trained), (case, pattern, device.trained)
        trained += len(device.trained)
    assert trained > cases


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hubbub_run": None}, "has no 'hubbub_run'.*pattern_kept_by='devices'"),
        ({"hubbub_run": "../../etc/passwd"}, "must be 64 hexadecimal digits"),
        ({"hubbub_min_separation": 0}, "must be at least 1"),
        ({"hubbub_max_participations": 2.5}, "must be a whole number"),
        ({"hubbub_round_index": -1}, "must be at least 0"),
        ({"hubbub_min_separation": 2}, "the run promised .* before, and says .* now"),
    ],
)
def test_what_a_server_says_is_checked(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    device = Device(tmp_path)
    assert device.asked(0) == ""
    found = device.asked(changed.pop("hubbub_round_index", 3), **changed)
    assert re.search(said, found), found
    assert device.trained == [0]


def test_prt_11_where_no_record_can_be_kept_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    device = Device(tmp_path / "file")
    assert "separation_mod" in device.asked(0)
    assert not device.trained


START = ArrayRecord({"w": Array(np.zeros(5, np.float32))})


def federation(folder: Path, nodes: int, trained: dict[int, list[int]], mods: list[Callable]) -> LocalGrid:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        told = message.content.config_records["config"]
        trained.setdefault(int(context.node_config["n"]), []).append(int(told["hubbub_round_index"]))  # type: ignore[arg-type]
        moved = ArrayRecord({"w": Array(np.full(5, 100.0, np.float32))})
        return Message(RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return LocalGrid(app, nodes, node_config=lambda n: {"n": n, FOLDER: str(folder / str(n))})


def strategy(state: Path | None = None, **changed: object) -> MatrixFactorizationDP:
    mechanism = Mechanism(toeplitz.square_root(9, bands=3), PATTERN, noise_multiplier=2.0)
    settings = {"clip_norm": 1.0, "num_sampled_clients": 6, "pattern_kept_by": "devices", "state": state, **changed}
    return MatrixFactorizationDP(FedAvg(), **{"mechanism": mechanism, **settings})  # type: ignore[arg-type]


def test_prt_11_a_federation_keeps_its_pattern_though_the_server_knows_nobody(tmp_path: Path) -> None:
    trained: dict[int, list[int]] = {}
    grid = federation(tmp_path / "devices", 8, trained, [separation_mod, clipping_mod])
    made = strategy(tmp_path / "state")
    made.start(grid, START, num_rounds=4)
    # After a restart, too.
    again = strategy(tmp_path / "state")
    again.start(grid, START, num_rounds=5)
    assert again.rounds_charged == 9
    assert sum(map(len, trained.values())) > 8
    assert all(PATTERN.allows(rounds) for rounds in trained.values()), trained
    # It costs what it costs where the server keeps the list, and the ledger has none.
    kept = strategy(pattern_kept_by="ledger", keys_enforced=True)
    assert again.guarantee().epsilon == kept.guarantee(rounds=9).epsilon
    assert not (tmp_path / "state/ledger.cohorts").exists()
    verdict = hubbub.verify(tmp_path / "state", again.ledger_head)
    assert verdict.ok, verdict
    assert "each device enforces the pattern itself" in str(verdict)
    statement = again.statement()
    assert "without a record counts every earlier round as one that it may have taken part in (devices)" in statement
    assert "or lies, nothing is promised (operator)" in statement
    assert "(ledger)" in statement
    assert "breaks the participation pattern, or its own rounds are counted" not in statement


def test_prt_11_a_reply_that_no_device_has_vouched_for_counts_as_nothing(tmp_path: Path) -> None:
    models = []
    for name, mods in (("none", [clipping_mod]), ("all", [separation_mod, clipping_mod])):
        made = strategy(simulation_seed=3)
        models.append(made.start(federation(tmp_path / name, 8, {}, mods), START, num_rounds=1).arrays["w"].numpy())
    noise, moved = models
    # Six updates of norm 1, over six: each number by 1/√5.
    np.testing.assert_allclose(moved - noise, 1 / np.sqrt(5), rtol=1e-4)


def test_what_no_device_keeps_is_refused() -> None:
    with pytest.raises(ConfigError, match="a device has nothing to enforce"):
        DPFedAvgFixed(FedAvg(), clip_norm=1, noise_multiplier=1, num_sampled_clients=3, pattern_kept_by="devices")
    for pattern, sizes in ((PoissonSampling(0.1), {"num_sampled_clients": None}), (FixedEpochs(3, 3), {})):
        with pytest.raises(ConfigError, match="say MinSeparation, or leave it out"):
            strategy(mechanism=Mechanism(Identity(9), pattern, 1.0), **sizes)
    with pytest.raises(ConfigError, match="with secagg: is not offered"):
        strategy(secagg=Paillier(dealt()[0]))
    with pytest.raises(ValueError, match="pattern_kept_by = 'nobody'"):
        strategy(pattern_kept_by="nobody")
    with pytest.raises(ConfigError, match="devices keep MinSeparation alone"):
        Promise(2, Mechanism(Identity(2), PoissonSampling(0.1), 2.0), settings={"pattern_kept_by": "devices"})
