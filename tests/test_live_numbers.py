"""What a run leaves for those who watch it: gauges for Prometheus and lines of JSON, public numbers alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.ledger.chain import record_hash
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
