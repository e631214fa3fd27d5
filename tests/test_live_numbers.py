"""What a run leaves for those who watch it: gauges for Prometheus and lines of JSON, public numbers alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hubbub.flower import DPFedAvgFixed, LocalGrid
from hubbub.ledger.chain import read_chain, record_hash
from hubbub.training import HeadHook
from hubbub.training.run_folder.record import Metrics

CONFIG = """
[training]
rounds = 4
evaluate_every = 4
[privacy]
noise_multiplier = 1.0
sampling = "poisson"
[data]
clients = 20
"""
GAUGES = {
    *("rounds", "rounds_planned", "rounds_aborted", "epsilon", "delta", "clip_norm", "loss", "accuracy"),
    "last_round_timestamp_seconds",
}


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


def trained(folder: Path, settings: str = CONFIG, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.toml").write_text(settings)
    command = [sys.executable, "-m", "hubbub", "train", "run.toml", "--out", "run", "--json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.slow
def test_a_run_leaves_gauges_and_lines_of_what_is_public_alone(tmp_path: Path) -> None:
    done = trained(tmp_path, HUBBUB_LOG="json")
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


def test_what_a_row_calls_private_is_in_no_gauge_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / 'r"u\\n').mkdir()
    folder = tmp_path / 'r"u\\n'
    line = b'{"body":{"kind":"promise"},"hash":"%s"}\n'
    (folder / "ledger.jsonl").write_bytes(line % record_hash("0" * 64, {"kind": "promise"}).encode())
    names = ["accuracy", "loss", "delta", "released", "rounds_aborted", "heads_waiting", "clients", "seconds"]
    with Metrics(folder / "metrics.jsonl", 9) as metrics:
        for t in range(2):
            row = dict.fromkeys(names, 0.123) | {"released": False, "round_index": t, "epsilon": None, "private": names}
            metrics.add(row, {"clip_norm": 2.0})
    assert "0.123" not in (folder / "metrics.prom").read_text()
    shown = gauges(folder / "metrics.prom")
    assert shown.pop("last_round_timestamp_seconds") > 0
    assert shown == {"rounds": 2, "rounds_planned": 9, "rounds_aborted": 0, "epsilon": float("inf"), "clip_norm": 2.0}
    assert 'run="r\\"u\\\\n"' in (folder / "metrics.prom").read_text()


def test_a_flower_server_leaves_them_too_and_counts_what_was_aborted_over_all_starts(tmp_path: Path) -> None:
    # Nobody answers.
    app, start = ClientApp(), ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    settings = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_sampled_clients": 3, "rounds": 9, "state": tmp_path / "run"}
    hook = HeadHook(["sh", "-c", f"test ! -e {tmp_path / 'away'}"])
    for rounds, on_failure in ((2, "abort"), (2, "abort")):
        strategy = DPFedAvgFixed(FedAvg(), on_failure=on_failure, head_hook=hook, **settings)  # type: ignore[arg-type]
        strategy.start(LocalGrid(app, num_nodes=4), start, num_rounds=rounds)
        (tmp_path / "away").touch()
    shown = gauges(tmp_path / "run" / "metrics.prom")
    assert (shown["rounds"], shown["rounds_planned"], shown["rounds_aborted"]) == (4, 9, 4)
    assert shown["heads_waiting"] == 2
    assert shown["epsilon"] == pytest.approx(strategy.guarantee().epsilon)
    kinds = [record["kind"] for record in read_chain(tmp_path / "run" / "ledger.jsonl").records]
    assert kinds.count("abort") == shown["rounds_aborted"]
