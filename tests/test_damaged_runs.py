"""A run whose settings were edited, that is at work or is none is not resumed: one line says why, and it is left as it is.

What becomes of files that are damaged is tried in ``test_malformed.py``.
"""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

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


# Settings of the run, and what else they may be; of a key that is no promise of its own the line says what differs.
OTHERS = {
    "noise_multiplier = 1.0": ("noise_multiplier = 0.5", "noise_multiplier was 1.0, is 0.5"),
    "bands = 5": ("bands = 4", "another promise"),
    'noise = "secure"': ('noise = "simulation"', "noise was 'secure'"),
    "clients = 100": ("clients = 50", "clients"),
}


@pytest.mark.parametrize("old", OTHERS)
def test_a_run_whose_settings_were_edited_is_refused_and_left_as_it_is(refused: Refused, interrupted: Path, old: str) -> None:
    shutil.copytree(interrupted, "run")
    new, word = OTHERS[old]
    text = Path("run/config.toml").read_text()
    assert f"\n{old}\n" in text
    Path("run/config.toml").write_text(text.replace(f"\n{old}\n", f"\n{new}\n"))
    before = contents(Path("run"))
    refused(["resume", "run", "--allow-import"], word)
    assert contents(Path("run")) == before


@pytest.mark.parametrize("file", ["config.toml", "ledger.jsonl"])
def test_a_folder_that_lost_what_makes_it_a_run_is_none(refused: Refused, interrupted: Path, file: str) -> None:
    shutil.copytree(interrupted, "run")
    Path("run", file).unlink()
    refused(["resume", "run", "--allow-import"], "is no run")


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
