"""Trackers, gauges and lines of JSON: public numbers apart from private ones, and no tracker that fails takes a run with it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import raising
from hubbub.errors import ConfigError
from hubbub.experiment import tracking
from hubbub.ledger.chain import Chain
from hubbub.training import RoundResult
from hubbub.training.run_folder.record import Metrics, read_metrics
from recorded_runs import SMALL, hubbub

PUBLIC = {"public/epsilon", "public/accuracy", "public/loss"}


class Mlflow(ModuleType):
    """The calls of MLflow's client that are made, and what they leave."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.experiments: dict[str, str] = {}
        self.runs: list[SimpleNamespace] = []
        self.broken_after: int | None = None
        self.MlflowClient = self._client

    def _client(self, tracking_uri: str) -> "Mlflow":
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def create_run(self, experiment_id: str, run_name: str) -> SimpleNamespace:
        self.runs.append(SimpleNamespace(experiment=experiment_id, name=run_name, values=[], status="RUNNING"))
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_metric(self, run_id: int, key: str, value: float, step: int) -> None:
        if self.broken_after is not None and len(self.runs[run_id].values) >= self.broken_after:
            raise ConnectionError("the line is dead")
        self.runs[run_id].values.append((key, value, step))

    def set_terminated(self, run_id: int, status: str) -> None:
        if self.broken_after is not None:
            raise ConnectionError("the line is dead")
        self.runs[run_id].status = status


class WandB(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.values: list[tuple[dict[str, float], int]] = []
        self.exit_code: int | None = None

    def Settings(self, **settings: object) -> dict[str, object]:  # noqa: N802 # as theirs is called
        return settings

    def init(self, **told: object) -> "WandB":
        self.told = told
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.values.append((values, step))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(mlflow=Mlflow(), wandb=WandB())
    for name, module in vars(found).items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def trained(folder: Path, *flags: str, settings: str = "") -> int:
    config = folder.with_suffix(".toml")
    config.write_text(SMALL.replace("rounds = 4,", f'rounds = 3, plan = "one-by-one", {settings}'))
    return hubbub("train", config, "--out", folder, *flags)


def test_what_a_population_calls_its_statistics_makes_none_of_them_public() -> None:
    statistics = {"accuracy": 0.9, "loss": 0.3, "train_loss": 0.4, "epsilon": 99.0, "of_one_client": 1.0}
    result = RoundResult(0, 31, 1.5, "", 0.5, statistics, phases={"aggregate": 0.25})
    assert tracking.scalars(result) == {"public/epsilon": 1.5, "public/released": 1.0}
    everything = tracking.scalars(result, private=True)
    assert {"private/accuracy", "private/loss", "private/of_one_client", "private/clients"} <= set(everything)
    assert everything["private/phases/aggregate"] == 0.25
    row = {"round_index": 0, "epsilon": 1.0, "accuracy": 0.5, "loss": 0.1, "fault": "client 7", "private": ["accuracy"]}
    assert tracking.scalars(row | {"loss": float("inf")}) == {"public/epsilon": 1.0}
    assert tracking.scalars(row, private=True) == {"public/epsilon": 1.0, "public/loss": 0.1, "private/accuracy": 0.5}


@pytest.mark.slow
def test_tensorboard_finds_every_number_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir(mode=0o755)
    assert trained(tmp_path / "run", "--tensorboard", str(tmp_path / "events")) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = EventAccumulator(str(tmp_path / "events" / "run"))
    found.Reload()
    assert set(found.Tags()["scalars"]) > {*PUBLIC, "private/clients", "private/phases/aggregate", "private/clipped_fraction"}
    for name, key in (("public/epsilon", "epsilon"), ("public/accuracy", "accuracy"), ("private/clients", "clients")):
        events = found.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3]
        assert [event.value for event in events] == pytest.approx([row[key] for row in rows], rel=1e-6)
    assert (tmp_path / "events" / "run").stat().st_mode & 0o077 == 0


def test_private_numbers_are_written_where_nobody_else_may_look(tmp_path: Path) -> None:
    with tracking.tensorboard(tmp_path, "new"):
        assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"tensorboard = .*others may enter .*open, .*: chmod 700 .*open\)"):
        tracking.tensorboard(tmp_path, "open").__enter__()


def test_a_hosted_tracker_gets_what_is_public_and_the_rest_if_it_is_asked_for(tmp_path: Path, trackers: Any) -> None:
    assert trained(tmp_path / "mine", "--mlflow", "http://there", "--wandb", "project") == 0
    (run,) = trackers.mlflow.runs
    assert (trackers.mlflow.uri, run.name, run.status, run.experiment) == ("http://there", "mine", "FINISHED", "0")
    assert {name for name, _, _ in run.values} == PUBLIC
    assert {name for values, _ in trackers.wandb.values for name in values} == PUBLIC
    assert {step for _, step in trackers.wandb.values} == {1, 2, 3}
    assert (trackers.wandb.told["project"], trackers.wandb.told["name"], trackers.wandb.exit_code) == ("project", "mine", 0)
    # What the terminal shows has private numbers in it.
    assert trackers.wandb.told["settings"]["console"] == "off"
    assert trained(tmp_path / "more", "--mlflow", "http://there", "--track-private") == 0
    names = {name for name, _, _ in trackers.mlflow.runs[1].values}
    assert names > {*PUBLIC, "private/clients", "private/seconds", "private/phases/update", "private/train_loss"}
    assert trackers.mlflow.experiments == {"hubbub": "0"}


def test_accuracy_on_held_out_clients_data_is_private(tmp_path: Path, trackers: Any) -> None:
    assert trained(tmp_path / "run", "--wandb", "project", settings="validation = 0.2,") == 0
    assert {name for values, _ in trackers.wandb.values for name in values} == {"public/epsilon"}


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path, trackers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trackers.mlflow.broken_after = 4
    assert trained(tmp_path / "run", "--mlflow", "http://there", "--wandb", "project") == 0
    told = capsys.readouterr().out
    assert told.count("--mlflow: stopped at round 2 (the line is dead); the run continues without it") == 1
    assert "A tracker could not be closed" in told
    assert (tmp_path / "run" / "report.html").exists()
    assert {step for _, step in trackers.wandb.values} == {1, 2, 3}
    assert trackers.wandb.exit_code == 0


CONFIG = """
training = { rounds = 4, evaluate_every = 4 }
privacy = { noise_multiplier = 1.0, sampling = "poisson" }
data = { clients = 20 }
"""
GAUGES = {*"rounds rounds_planned rounds_aborted epsilon delta clip_norm loss accuracy last_round_timestamp_seconds".split()}


def gauges(path: Path) -> dict[str, float]:
    """The samples of a file in Prometheus' text format, read by its grammar."""
    found = {}
    lines = path.read_text().split("\n")
    assert lines.pop() == ""
    for help_, kind, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = re.fullmatch(r"# TYPE hubbub_(\w+) gauge", kind)[1]  # type: ignore[index]
        assert re.fullmatch(rf"# HELP hubbub_{name} \S.*\.", help_)
        value = re.fullmatch(rf'hubbub_{name}\{{run="((?:[^"\\\n]|\\[\\"n])*)"\}} (\S+)', sample)
        assert value, sample
        found[name] = float(value[2])
    return found


@pytest.mark.slow
def test_a_run_leaves_gauges_and_lines_of_what_is_public_alone(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "hubbub", "train", "run.toml", "--out", "run", "--json"]
    environment = {**os.environ, "HUBBUB_LOG": "json"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    shown = gauges(tmp_path / "run" / "metrics.prom")
    assert set(shown) == GAUGES
    assert (shown["rounds"], shown["rounds_planned"], shown["rounds_aborted"], shown["clip_norm"]) == (4, 4, 0, 1.0)
    for name in ("epsilon", "delta", "loss", "accuracy"):
        assert shown[name] == rows[-1][name]
    assert shown["last_round_timestamp_seconds"] == pytest.approx((tmp_path / "run" / "metrics.prom").stat().st_mtime, abs=1)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["rounds"] for line in lines] == [1, 2, 3, 4]
    assert set(lines[0]) == GAUGES - {"loss", "accuracy"} | {"event", "run"}
    assert lines[-1] == {"event": "round", "run": "run", **shown}
    # The program's own answer is as it was.
    assert json.loads(done.stdout)["run"] == "run"


def test_what_a_row_calls_private_is_in_no_gauge_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / 'r"u\\n\udcff'
    folder.mkdir()
    Chain(folder / "ledger.jsonl").append({"kind": "promise"})
    names = ["accuracy", "loss", "delta", "released", "rounds_aborted", "heads_waiting", "clients", "seconds"]
    metrics, write = Metrics(folder / "metrics.jsonl", 9), os.write
    for t in range(2):
        row = dict.fromkeys(names, 0.123) | {"released": False, "round_index": t, "epsilon": None, "private": names}
        # What a full disk leaves of a row is gone with the next one.
        monkeypatch.setattr(os, "write", lambda at, part: write(at, part[:9]) and raising(OSError(28, "full"))())
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            metrics.add(row, {})
        monkeypatch.undo()
        metrics.add(row, {"clip_norm": 2.0})
    assert [line["round_index"] for line in read_metrics(folder / "metrics.jsonl")[0]] == [0, 1]
    assert "0.123" not in (folder / "metrics.prom").read_text()
    shown = gauges(folder / "metrics.prom")
    assert shown.pop("last_round_timestamp_seconds") > 0
    assert shown == {"rounds": 2, "rounds_planned": 9, "rounds_aborted": 0, "epsilon": float("inf"), "clip_norm": 2.0}
    assert 'run="r\\"u\\\\n?"' in (folder / "metrics.prom").read_text()
