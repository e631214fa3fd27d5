"""A run that is damaged, at work or none at all is not resumed; one line says why, and the folder is left as it is."""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import refusals
from hubbub.cli import main
from refusals import Refused, contents, output, settings

# Fixtures are found by their names here.
workplace, refused = refusals.workplace, refusals.refused

# A checkpoint is written after round 10; the interruption comes after the twelfth release.
INTERRUPTED = """
[training]
rounds = 14
cohort_size = 4

[privacy]
mode = "dp-ftrl"
noise_multiplier = 1.0

[participation]
min_separation = 5
max_participations = 2

[data]
name = "digits"
clients = 100

[model]
name = "model_of_an_interrupted_run:Interrupting"
"""

INTERRUPTING = """
import signal

from hubbub.models import Mlp

evaluations = 0


class Interrupting(Mlp):
    def forward(self, x):
        global evaluations
        evaluations += not self.training
        if evaluations == 12 and not self.training:
            signal.raise_signal(signal.SIGINT)
        return super().forward(x)
"""

# Starts "hubbub resume" on its own run while the run goes on, and keeps what came of it.
OVERTAKEN = """
import os
import subprocess
import sys
from pathlib import Path

from hubbub.models import Mlp

evaluations = 0


class Overtaken(Mlp):
    def forward(self, x):
        global evaluations
        evaluations += not self.training
        if evaluations == 1 and not self.training and "OVERTAKING" not in os.environ:
            done = subprocess.run(
                [sys.executable, "-m", "hubbub", "resume", "run", "--allow-import"],
                env={**os.environ, "OVERTAKING": "1"},
                capture_output=True,
                text=True,
                timeout=100,
            )
            Path("second.txt").write_text(f"{done.returncode}\\n{done.stderr}")
        return super().forward(x)
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that Ctrl-C stopped after 12 of 14 rounds."""
    place = tmp_path_factory.mktemp("interrupted")
    (place / "model_of_an_interrupted_run.py").write_text(INTERRUPTING)
    (place / "config.toml").write_text(INTERRUPTED)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(place)
        with pytest.raises(SystemExit) as stop:
            main(["train", str(place / "config.toml"), "--out", str(place / "run"), "--allow-import"])
    assert stop.value.code == 130
    return place / "run"


@pytest.mark.parametrize("name", ["nowhere", "good.toml", ".", "empty"])
def test_what_is_no_run_cannot_be_resumed(refused: Refused, name: str) -> None:
    Path("empty").mkdir()
    refused(["resume", name], name, "is no run", "hubbub train")
    assert not list(Path("empty").iterdir())


Damage = Callable[[Path], Any]


def without(file: str) -> Damage:
    return lambda run: (run / file).unlink()


def holding(file: str, content: bytes) -> Damage:
    return lambda run: (run / file).write_bytes(content)


def flipped(file: str) -> Damage:
    def damage(run: Path) -> None:
        content = bytearray((run / file).read_bytes())
        content[len(content) // 2] ^= 1
        (run / file).write_bytes(content)

    return damage


def edited(old: str, new: str) -> Damage:
    def damage(run: Path) -> None:
        text = (run / "config.toml").read_text()
        assert f"\n{old}\n" in text
        (run / "config.toml").write_text(text.replace(f"\n{old}\n", f"\n{new}\n"))

    return damage


def relined(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    def damage(run: Path) -> None:
        lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (run / "ledger.jsonl").write_bytes(b"".join(change(lines)))

    return damage


def without_tensor(name: str, tensor: str) -> Damage:
    def damage(run: Path) -> None:
        file = run / "state" / name
        content = save_tensors({name: value for name, value in load_tensors(file.read_bytes()).items() if name != tensor})
        file.write_bytes(content)
        manifest = json.loads((run / "state" / "checkpoint.json").read_text())
        manifest["files"][name] |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        (run / "state" / "checkpoint.json").write_text(json.dumps(manifest))

    return damage


# What is done to the folder, and what the line must name.
DAMAGES: dict[str, tuple[Damage, list[str]]] = {
    "no config": (without("config.toml"), ["is no run"]),
    "empty config": (holding("config.toml", b""), ["noise_multiplier"]),
    "binary config": (holding("config.toml", bytes(range(256))), ["config.toml", "is not TOML"]),
    "less noise": (edited("noise_multiplier = 1.0", "noise_multiplier = 0.5"), ["noise_multiplier was 1.0, is 0.5"]),
    "more rounds": (edited("rounds = 14", "rounds = 15"), ["rounds was 14, is 15"]),
    "fewer rounds": (edited("rounds = 14", "rounds = 13"), ["rounds was 14, is 13"]),
    "more participations": (edited("max_participations = 2", "max_participations = 3"), ["max_participations was 2, is 3"]),
    "other bands": (edited("bands = 5", "bands = 4"), ["another promise"]),
    "known noise": (edited('noise = "secure"', 'noise = "simulation"'), ["noise was 'secure'"]),
    "other clients behind the same numbers": (edited("clients = 100", "clients = 50"), ["clients"]),
    "other people behind the same numbers": (edited("seed = 0", "seed = 1"), ["seed"]),
    "other deal to clients": (edited('partition = "iid"', 'partition = "dirichlet"'), ["partition"]),
    "other clip norm": (edited("clip_norm = 1.0", "clip_norm = 9.0"), ["clip_norm"]),
    "other learning rate": (edited("learning_rate = 0.05", "learning_rate = 5.0"), ["learning_rate"]),
    "no ledger": (without("ledger.jsonl"), ["is no run"]),
    "empty ledger": (holding("ledger.jsonl", b""), ["ledger.jsonl"]),
    "binary ledger": (holding("ledger.jsonl", bytes(range(256)) + b"\n"), ["ledger.jsonl", "line 1"]),
    "nested ledger": (holding("ledger.jsonl", b"[" * 200_000 + b"\n"), ["ledger.jsonl", "line 1"]),
    "edited ledger": (relined(lambda lines: [lines[0].replace(b"14", b"99"), *lines[1:]]), ["ledger.jsonl", "line 1"]),
    "ledger without a round": (relined(lambda lines: lines[:2] + lines[4:]), ["ledger.jsonl", "line 3"]),
    "ledger out of order": (relined(lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]]), ["ledger.jsonl", "line 3"]),
    "ledger with a line twice": (relined(lambda lines: [*lines, lines[-1]]), ["ledger.jsonl", "line 27"]),
    "ledger with a strange line": (relined(lambda lines: [*lines, b"hello\n"]), ["ledger.jsonl", "line 27"]),
    "ledger that ends before the checkpoint": (relined(lambda lines: lines[:-6]), ["ledger", "rolled back"]),
    "ledger of the promise alone": (relined(lambda lines: lines[:1]), ["ledger", "rolled back"]),
    "no key of the run": (without("state/keys/run"), ["state/keys/run"]),
    "short key of the run": (holding("state/keys/run", bytes(31)), ["state/keys/run", "31 bytes"]),
    "other key of the run": (flipped("state/keys/run"), ["state/keys/run"]),
    "no key of the noise": (without("state/keys/epoch-0"), ["state/keys/epoch-0"]),
    "short key of the noise": (holding("state/keys/epoch-0", b""), ["state/keys/epoch-0", "0 bytes"]),
    "other key of the noise": (flipped("state/keys/epoch-0"), ["state/keys/epoch-0"]),
    "empty manifest": (holding("state/checkpoint.json", b""), ["checkpoint.json"]),
    "manifest of another kind": (holding("state/checkpoint.json", b"[]"), ["checkpoint.json"]),
    "manifest of endless rounds": (holding("state/checkpoint.json", b'{"rounds": Infinity}'), ["checkpoint.json"]),
    "nested manifest": (holding("state/checkpoint.json", b"[" * 200_000), ["checkpoint.json"]),
    "no checkpoint": (without("state/checkpoint-10.safetensors"), ["checkpoint-10.safetensors"]),
    "binary checkpoint": (holding("state/checkpoint-10.safetensors", bytes(range(256))), ["checkpoint-10.safetensors"]),
    "flipped checkpoint": (flipped("state/checkpoint-10.safetensors"), ["checkpoint-10.safetensors"]),
    "checkpoint without a model": (without_tensor("checkpoint-10.safetensors", "model"), ["checkpoint-10.safetensors"]),
    "checkpoint without its noise": (without_tensor("noise-10.safetensors", "memory.000001"), ["noise-10.safetensors"]),
    "no release": (without("state/releases/11.safetensors"), ["releases/11.safetensors"]),
    "flipped release": (flipped("state/releases/10.safetensors"), ["releases/10.safetensors"]),
    "binary metrics": (holding("metrics.jsonl", bytes(range(128, 256)) + b"\n"), ["metrics.jsonl"]),
    "metrics without epsilon": (holding("metrics.jsonl", b"{}\n"), ["metrics.jsonl"]),
    "metrics without rounds": (holding("metrics.jsonl", b'{"epsilon": 1.0}\n'), ["metrics.jsonl"]),
    "metrics of another kind": (holding("metrics.jsonl", b"[]\n"), ["metrics.jsonl"]),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_run_is_refused_and_left_as_it_is(
    refused: Refused, interrupted: Path, damage: Damage, words: list[str]
) -> None:
    shutil.copytree(interrupted, "run")
    damage(Path("run"))
    before = contents(Path("run"))
    refused(["resume", "run", "--allow-import"], *words)
    assert contents(Path("run")) == before


def test_own_code_of_a_run_is_not_resumed_without_permission(refused: Refused, interrupted: Path) -> None:
    before = contents(interrupted)
    refused(["resume", str(interrupted)], "model.name", "--allow-import")
    assert contents(interrupted) == before


def test_an_interrupted_run_that_is_whole_goes_on(capsys: pytest.CaptureFixture[str], interrupted: Path) -> None:
    shutil.copytree(interrupted, "run")
    output(capsys, ["resume", "run", "--allow-import"])
    kinds = [json.loads(line)["body"]["kind"] for line in Path("run/ledger.jsonl").read_text().splitlines()]
    assert kinds.count("commit") == 14
    # The twelfth round was released before the interruption, so the run is complete.
    assert "stopped after" not in Path("run/report.md").read_text()


def test_a_run_in_progress_is_not_resumed_a_second_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("model_of_a_run_in_progress.py").write_text(OVERTAKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    config = settings("good.toml", "model.name=model_of_a_run_in_progress:Overtaken")
    arguments = [*config, "--allow-import"]
    arguments[arguments.index("new")] = "run"
    # Whatever becomes of the first, the second must have been refused.
    with contextlib.suppress(SystemExit):
        main(arguments)
    code, *error = Path("second.txt").read_text().splitlines()
    assert code == "2", error
    assert len(error) == 1
    assert "run" in error[0]
    output(capsys, ["resume", "run", "--allow-import"])
