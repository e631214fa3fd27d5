"""What goes wrong around a federation: nobody encrypts, nobody is known, nobody answers, or somebody else adds noise, too."""

import itertools
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flowers

import flower_arms
from flower_arms import Federation, entries, record, separated, told
from flower_defects import distance
from flower_deployment import LOOPBACK, free_port
from hubbub.errors import ConfigError, ParticipationError, SumNotOpenedError
from hubbub.flower import DPFedAvgAdaptive, DPFedAvgFixed, LocalGrid, clipping_mod, messages, noising_mod
from hubbub.flower.strategies import PrivateStrategy
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History

ROOT = Path(__file__).parent.parent
CLIENTS = 4
MODEL = {"w": np.linspace(-1, 1, 40, dtype=np.float32), "scale": np.array(2.5, np.float32)}
ONES = {"w": np.ones(40, np.float32), "scale": np.array(1, np.float32)}
fixed = partial(flower_arms.fixed, CLIENTS)


pytestmark = pytest.mark.usefixtures("quiet")


def moved(model: dict[str, Any], index: int) -> dict[str, Any]:
    return {name: values + np.float32(0.01) for name, values in model.items()}


def asked(strategy: PrivateStrategy, grid: LocalGrid) -> list[int]:
    messages = strategy.configure_train(1, record(MODEL), ConfigRecord(), grid)
    return sorted(message.metadata.dst_node_id for message in messages)


def rounds_of(state: Path) -> History:
    return History.of_chain(read_chain(state / "ledger.jsonl"))


@pytest.mark.slow
def test_flw_1_a_superlink_without_certificates_does_not_start(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("flower-superlink")), "--host", LOOPBACK, "--port", str(free_port())]
    environment = {**os.environ, "FLWR_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert "--insecure" in ended.stdout + ended.stderr


@pytest.mark.parametrize("make", [fixed, separated], ids=["fixed", "separated"])
def test_flw_1_a_statement_says_that_it_counts_on_encryption_on_the_way(make: Callable[[], PrivateStrategy]) -> None:
    strategy = make()
    assert asked(strategy, LocalGrid(ClientApp(), num_nodes=9))
    (line,) = [line for line in strategy.statement().splitlines() if "TLS" in line]
    assert "no single update" in line
    assert "operator" in line
    assert any("TLS" in str(assumption) for assumption in strategy.guarantee().assumptions)


def test_flw_2_a_promise_of_who_joins_when_is_not_made_where_anybody_may_join() -> None:
    with pytest.raises(ConfigError, match="--enable-supernode-auth"):
        separated(keys_enforced=False)


def test_flw_2_a_node_without_a_registered_key_is_never_asked() -> None:
    strategy = separated()
    assert asked(strategy, told((1, b"a"), (2, b""), (3, b"c"), (4, b""))) == [1, 3]
    with pytest.raises(ParticipationError, match="none of 2 connected clients may join"):
        asked(strategy, told((1, b"a"), (3, b"c")))
    with pytest.raises(ParticipationError, match="none of 2 connected nodes has a public key"):
        asked(strategy, told((5, b""), (6, b"")))


class Breaks(flowers.FedAvg):
    """Breaks down where it learns, in the rounds that are named."""

    breaks_in: tuple[int, ...] = ()

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if server_round in self.breaks_in:
            raise ZeroDivisionError("the wrapped strategy breaks down")
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("again", ["the same strategy", "another"])
def test_flw_4_an_exception_where_a_release_is_learnt_ends_the_start_and_the_next_learns_it(tmp_path: Path, again: str) -> None:
    def made(*breaks_in: int) -> DPFedAvgFixed:
        inner = Breaks(min_available_nodes=CLIENTS)
        inner.breaks_in = breaks_in
        return DPFedAvgFixed(inner, clip_norm=1.0, noise_multiplier=1e-6, num_sampled_clients=CLIENTS, state=tmp_path)

    strategy = made(2)
    with pytest.raises(ZeroDivisionError):
        strategy.start(Federation(CLIENTS, moved).grid, record(MODEL), num_rounds=3)
    assert [entry.state for entry in rounds_of(tmp_path).rounds] == ["committed", "committed"]
    if again == "another":
        strategy = made()
    strategy.strategy.breaks_in = ()  # type: ignore[attr-defined]
    learnt = strategy.start(Federation(CLIENTS, moved).grid, record(MODEL), num_rounds=1).arrays
    assert [entry.state for entry in rounds_of(tmp_path).rounds] == ["committed"] * 3
    assert strategy.rounds_charged == strategy.guarantee().rounds == 3
    # All clients move it by a hundredth in each round.
    np.testing.assert_allclose(learnt["w"].numpy() - MODEL["w"], 0.03, atol=1e-4)


def test_flw_4_an_exception_while_replies_come_aborts_the_round_and_the_run_goes_on(tmp_path: Path) -> None:
    def broken_off(replies: list[Message]) -> Iterator[Message]:
        yield replies[0]
        raise ConnectionError("the connection is lost")

    strategy, federation = fixed(state=tmp_path), Federation(CLIENTS, moved)
    replies = federation.ask(strategy, MODEL)
    with pytest.raises(ConnectionError):
        strategy.aggregate_train(1, broken_off(replies))
    model, metrics = federation.round(strategy, MODEL)
    assert [entry.state for entry in rounds_of(tmp_path).rounds] == ["aborted", "committed"]
    assert metrics["round"] == 2
    assert distance(model, entries(record(MODEL))) > 0


def test_flw_5_a_server_that_starts_again_goes_on_with_model_ledger_clip_norm_and_participation(tmp_path: Path) -> None:
    def adaptive() -> DPFedAvgAdaptive:
        inner, state = flowers.FedAdam(min_available_nodes=12), tmp_path / "adaptive"
        return DPFedAvgAdaptive(inner, noise_multiplier=1.0, num_sampled_clients=3, state=state)

    first = adaptive()
    grid = Federation(12, moved).grid
    before = first.start(grid, record(MODEL), num_rounds=2)
    again = adaptive()
    # Of a start of no round the model is the one that there was, whatever is given to begin with.
    result = again.start(grid, record(ONES), num_rounds=0)
    assert distance(entries(result.arrays), entries(before.arrays)) == 0
    assert again.clip_norm == first.clip_norm != adaptive()._clipping.initial_clip_norm  # type: ignore[union-attr]
    assert again.rounds_charged == 2
    assert again.start(grid, record(ONES), num_rounds=1).train_metrics_clientapp[1]["round"] == 3
    assert again.guarantee().epsilon > first.guarantee(rounds=2).epsilon
    # And who took part is not asked again too soon.
    them = [set(asked(separated(tmp_path / "separated"), grid)) for _ in range(3)]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(them, 2))


def test_flw_6_prt_5_nodes_that_come_back_under_new_numbers_are_the_clients_whose_keys_they_have(tmp_path: Path) -> None:
    assert asked(separated(tmp_path), told((1, b"a"), (2, b"b"), (3, b"c"))) == [1, 2, 3]
    # The SuperLink starts again, and numbers its nodes anew; so does the server.
    with pytest.raises(ParticipationError, match="none of 3 connected clients may join"):
        asked(separated(tmp_path), told((11, b"c"), (12, b"a"), (13, b"b")))
    # The old numbers stand for others now, who may join.
    assert asked(separated(tmp_path), told((1, b"d"), (2, b"e"), (13, b"b"))) == [1, 2]


def too_long(model: dict[str, Any], index: int) -> dict[str, Any]:
    return {name: values + np.float32(1000.0 * (index == 0)) for name, values in model.items()}


MODS: dict[str, list[Any]] = {
    "none": [],
    "ours": [clipping_mod],
    "ours twice": [clipping_mod, clipping_mod],
    "one for noise that nobody asked for": [clipping_mod, noising_mod],
    "Flower's": [fixedclipping_mod],
    "Flower's for adaptive clipping": [adaptiveclipping_mod],
    "several in some order": [noising_mod, fixedclipping_mod, clipping_mod],
}


@pytest.mark.parametrize("mods", MODS.values(), ids=MODS)
def test_flw_7_whatever_mods_clients_have_one_moves_the_release_by_one_clip_norm_at_most(mods: list[Any]) -> None:
    models = []
    for training in (too_long, lambda model, index: model):
        federation = Federation(CLIENTS, training, mods=mods)
        models.append(federation.round(fixed(simulation_seed=3), MODEL)[0])
    assert distance(*models) <= 1.0 / CLIENTS * (1 + 1e-5)


@pytest.mark.parametrize(
    "mods", [[], [clipping_mod], [clipping_mod, noising_mod]], ids=["none", "clipping alone", "clipping around noising"]
)
def test_flw_7_without_the_mods_that_noise_at_the_clients_needs_nothing_is_released(mods: list[Any]) -> None:
    strategy = fixed(noise_at="clients", min_survivors=2)
    model, metrics = Federation(CLIENTS, too_long, mods=mods).round(strategy, MODEL)
    assert (metrics["released"], strategy.rounds_charged) == (0, 1)
    assert distance(model, entries(record(MODEL))) == 0
    assert Federation(CLIENTS, too_long, mods=mods).round(strategy, MODEL)[1]["released"] == 0
    with pytest.raises(SumNotOpenedError, match=r"0 good replies, min_survivors = 2 \(3 rounds in a row"):
        Federation(CLIENTS, too_long, mods=mods).round(strategy, MODEL)


def test_flw_7_the_mod_that_adds_noise_clips_by_itself() -> None:
    strategy = fixed(noise_at="clients", min_survivors=CLIENTS)
    model, metrics = Federation(CLIENTS, too_long, mods=[noising_mod]).round(strategy, MODEL)
    assert metrics["released"] == 1
    # Noise of a quarter in each of 41 numbers, and a quarter of one clip norm; the update was a thousand in each.
    assert distance(model, entries(record(MODEL))) < 10 * 0.25 * np.sqrt(41)


THEIRS: dict[str, Callable[[Any], Any]] = {
    "server, fixed": lambda inner: flowers.DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 1.0, CLIENTS),
    "server, adaptive": lambda inner: flowers.DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.1, CLIENTS),
    "client, fixed": lambda inner: flowers.DifferentialPrivacyClientSideFixedClipping(inner, 1.0, 1.0, CLIENTS),
    "ours": lambda inner: fixed(),
}


@pytest.mark.parametrize("theirs", THEIRS.values(), ids=THEIRS)
def test_flw_8_a_private_strategy_within_ours_is_refused(theirs: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match="is private itself; wrap the strategy within it"):
        DPFedAvgFixed(theirs(flowers.FedAvg()), clip_norm=1.0, noise_multiplier=1.0, num_sampled_clients=CLIENTS)


@pytest.mark.parametrize("name", ["server, fixed", "server, adaptive"])
def test_flw_8_ours_within_flowers_clips_charges_and_hides_all_the_same(name: str, tmp_path: Path) -> None:
    models = []
    for number, first in enumerate((1000.0, 0.02)):
        ours = fixed(state=tmp_path / str(number), simulation_seed=3)
        np.random.seed(0)  # noqa: NPY002 # of their noise

        def training(model: dict[str, Any], index: int, first: float = first) -> dict[str, Any]:
            return {name: values + np.float32(0.01 if index else first) for name, values in model.items()}

        models.append(Federation(CLIENTS, training).round(THEIRS[name](ours), MODEL)[0])
        assert ours.rounds_charged == ours.guarantee().rounds == 1
    # One update in the place of another.
    assert distance(*models) <= 2.0 / CLIENTS * (1 + 1e-5)
    # Our noise is there, of a quarter in each of 41 numbers.
    assert distance(models[1], entries(record(MODEL))) > 0.25 * np.sqrt(41) * 0.5


def test_flw_9_a_round_that_nobody_answers_is_charged_told_and_releases_noise_alone(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    strategy, federation = fixed(), Federation(CLIENTS, moved, silent=range(CLIENTS))
    with caplog.at_level(logging.WARNING, "flwr"):
        _, metrics = federation.round(strategy, MODEL)
    assert (metrics["released"], strategy.rounds_charged) == (1, 1)
    assert "no reply counts" in caplog.text


@pytest.mark.parametrize("silent", [1, 3, 4])
def test_flw_9_where_failures_discard_a_round_it_stays_charged_and_the_run_goes_on(silent: int) -> None:
    strategy = fixed(on_failure="abort")
    model, metrics = Federation(CLIENTS, moved, silent=range(silent)).round(strategy, MODEL)
    assert (metrics["released"], strategy.rounds_charged) == (0, 1)
    assert distance(model, entries(record(MODEL))) == 0
    _, metrics = Federation(CLIENTS, moved).round(strategy, MODEL)
    assert (metrics["released"], strategy.rounds_charged) == (1, 2)


@pytest.mark.parametrize("there", [0, 1])
def test_flw_9_waiting_for_nodes_ends_with_a_message_and_charges_nothing(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(step=60.0)
    waited: list[float] = []
    monkeypatch.setattr(messages, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=waited.append))
    strategy, grid = fixed(), told(*[(number, b"") for number in range(there)])
    grid.all_connected = False
    with pytest.raises(ParticipationError, match=f"min_available_nodes = 4: {there} nodes are connected after 600 seconds"):
        asked(strategy, grid)
    assert 0 < len(waited) < 20
    assert strategy.rounds_charged == 0


def test_flw_9_nodes_that_cannot_come_are_not_waited_for_and_those_of_an_exact_evaluation_not_in_vain() -> None:
    one, exact = flowers.FedAvg(min_available_nodes=1), {"clip_norm": 1.0, "noise_multiplier": 1.0, "evaluation": "exact"}
    alone = DPFedAvgFixed(one, num_sampled_clients=1, **exact)
    for strategy, words in ((fixed(), "min_available_nodes = 4"), (alone, "min_evaluate_nodes = 2")):
        with pytest.raises(ParticipationError, match=f"{words}: this grid has 1 nodes, and no other will come"):
            asked(strategy, LocalGrid(ClientApp(), num_nodes=1))
        assert strategy.rounds_charged == 0


# The newest that the adapter was tried on.
NEWEST = "1.42.0"
ADAPTER = ("strategies", "replies", "mods", "numpy_client", "twins", "engine", "defects")


def test_flw_10_the_version_that_is_tested_with_is_the_least_that_is_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked_for,) = extras["flower"]
    least = asked_for.removeprefix("flwr>=").partition(",")[0]
    assert version("flwr") == f"{least}.0" or version("flwr") == NEWEST
    assert f"flwr=={least}.0" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.slow
def test_flw_10_the_adapters_tests_pass_on_the_newest_version_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "newest")]
    subprocess.run([*command, f"flwr=={NEWEST}"], check=True, timeout=600)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "newest")}
    ask = [sys.executable, "-c", "from importlib.metadata import version; print(version('flwr'))"]
    found = subprocess.run(ask, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == NEWEST
    tests = [str(Path(__file__)), *(str(ROOT / "tests" / f"test_flower_{name}.py") for name in ADAPTER)]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow"]
    ended = subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:]
