"""Wrong input gives one clear line and exit code 2, never a traceback, and nothing that was there before changes."""

import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from hubbub.cli import main

GOOD = """
[training]
rounds = 2
cohort_size = 2

[privacy]
mode = "dp-fedavg"
noise_multiplier = 1.0

[data]
name = "digits"
clients = 10
"""

CORRELATED = """
[training]
rounds = 4
cohort_size = 2

[privacy]
mode = "dp-ftrl"
noise_multiplier = 1.0

[participation]
min_separation = 2

[data]
name = "digits"
clients = 10
"""

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

OWN_CODE = """
from torch import nn


def seven(*ignored):
    return 7


class Gathering(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own with two good configs, as the current one."""
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.chdir(tmp_path)
    # Names of own code are looked up in the current folder too, which a command adds here.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("HUBBUB_DEBUG", raising=False)
    monkeypatch.delenv("HUBBUB_DATA", raising=False)
    Path("good.toml").write_text(GOOD)
    Path("correlated.toml").write_text(CORRELATED)
    Path("pattern.toml").write_text(CORRELATED.replace("min_separation = 2\n", ""))
    yield tmp_path
    sys.modules.pop("own_code", None)
    signal.signal(signal.SIGINT, handler)


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


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused; gives back the line that says why."""

    def run(arguments: list[str], *words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        error = capsys.readouterr().err
        assert stop.value.code == 2, error
        assert "Traceback" not in error
        assert len(error.splitlines()) == 1, error
        assert not [word for word in words if word not in error], error
        return error

    return run


def output(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """What a command that succeeds prints on standard output."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert stop.value.code == 0, printed.err
    return printed.out


def strict_json(text: str) -> Any:
    """One JSON value; NaN and Infinity, which JSON does not have, are refused."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, by digest."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def settings(config: str, *assignments: str) -> list[str]:
    """The arguments that train with settings over a file."""
    flags = [part for assignment in assignments for part in ("--set", assignment)]
    return ["train", config, "--out", "new", *flags]


# --- the command line itself ---

ACCOUNT = ["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", "1"]
CALIBRATE = ["calibrate", "--rounds", "5", "--delta", "1e-5", "--epsilon", "1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian", "good.toml"], ["trian", "did you mean 'train'"]),
        (["account", "--rounds", "5"], ["--delta"]),
        (["account", "--delta", "1e-5"], ["--rounds"]),
        (["calibrate", "--rounds", "5", "--delta", "1e-5"], ["--epsilon"]),
        (["train"], ["config"]),
        (["resume"], ["run"]),
        (["plan"], ["config"]),
        (["train", "good.toml", "correlated.toml"], ["correlated.toml"]),
        (["train", "good.toml", "--outt", "new"], ["--outt", "--out"]),
        ([*ACCOUNT[:-2], "--noise-multipler", "1"], ["--noise-multipler", "--noise-multiplier"]),
        ([*CALIBRATE, "--noise-multiplier", "1"], ["--noise-multiplier"]),
        (["resume", "run", "--out", "new"], ["--out"]),
        (["train", "good.toml", "--set"], ["--set", "argument"]),
        (["account", "--rounds", "5", "--delta"], ["--delta", "argument"]),
        ([*ACCOUNT, "--json=yes"], ["--json"]),
    ],
    ids=lambda value: " ".join(value) if value[0] in ("trian", "account", "calibrate", "train", "resume", "plan") else "",
)
def test_a_misused_command_line_is_explained_in_one_line(refused: Refused, arguments: list[str], words: list[str]) -> None:
    lowered = refused(arguments).lower()
    assert not [word for word in words if word.lower() not in lowered], lowered


def test_hubbub_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    assert stop.value.code in (0, 2)
    assert any("Usage" in line for line in lines)
    assert any("calibrate" in line.split() for line in lines)


@pytest.mark.parametrize("value", ["many", "2.5", "true", "1e12", "nan", ""])
def test_a_flag_that_needs_a_whole_number_says_so_and_shows_what_it_got(refused: Refused, value: str) -> None:
    refused(["account", "--rounds", value, "--delta", "1e-5", "--noise-multiplier", "1"], "--rounds", value)


@pytest.mark.parametrize("flag", ["--delta", "--noise-multiplier", "--clip-noise-multiplier", "--sampling-probability"])
def test_a_flag_that_needs_a_number_says_so_and_shows_what_it_got(refused: Refused, flag: str) -> None:
    refused(["account", "--rounds", "5", "--delta", "1e-5", flag, "tiny"], flag, "tiny")


@pytest.mark.parametrize("value", ["0", "-1", "-1000000000000"])
def test_rounds_that_are_not_positive_are_refused(refused: Refused, value: str) -> None:
    refused(["account", "--rounds", value, "--delta", "1e-5", "--noise-multiplier", "1"], f"rounds = {value}", "at least 1")


@pytest.mark.parametrize("more", ["", "--sampling-probability 0.1", "--strategy tree"], ids=["independent", "poisson", "tree"])
def test_more_rounds_than_any_memory_holds_are_refused(refused: Refused, more: str) -> None:
    rounds = str(10**15)
    refused(["account", "--rounds", rounds, "--delta", "1e-5", "--noise-multiplier", "1", *more.split()], "rounds", rounds)


@pytest.mark.parametrize("value", ["0", "1", "-1e-5", "1.5", "nan", "inf"])
def test_a_delta_outside_the_open_unit_interval_is_refused(refused: Refused, value: str) -> None:
    refused(["account", "--rounds", "5", "--delta", value, "--noise-multiplier", "1"], "delta", str(float(value)))


@pytest.mark.parametrize("flag", ["--noise-multiplier", "--clip-noise-multiplier"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf"])
def test_noise_that_hides_nothing_is_refused(refused: Refused, flag: str, value: str) -> None:
    name = flag.removeprefix("--").replace("-", "_")
    error = refused(["account", "--rounds", "5", "--delta", "1e-5", flag, value], str(float(value)))
    assert flag in error or name in error


@pytest.mark.parametrize("more", [[], ["--sampling-probability", "0.1"]], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("value", ["1e-200", "1e-160", "1e-100", "1e300"])
def test_noise_beyond_what_can_be_computed_is_refused_by_name(refused: Refused, value: str, more: list[str]) -> None:
    refused(["account", "--rounds", "5", "--delta", "1e-5", "--noise-multiplier", value, *more], "noise", repr(float(value)))


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_budget_that_is_no_budget_is_refused(refused: Refused, value: str) -> None:
    refused(["calibrate", "--rounds", "5", "--delta", "1e-5", "--epsilon", value], "epsilon", str(float(value)))


def test_a_budget_beyond_what_can_be_computed_is_refused_by_name(refused: Refused) -> None:
    refused(["calibrate", "--rounds", "5", "--delta", "1e-5", "--epsilon", "1e300"], "epsilon", "1e+300")


@pytest.mark.parametrize("both", [True, False], ids=["both", "neither"])
def test_account_takes_exactly_one_noise_multiplier(refused: Refused, both: bool) -> None:
    given = ["--noise-multiplier", "1", "--clip-noise-multiplier", "1"] if both else []
    refused(["account", "--rounds", "5", "--delta", "1e-5", *given], "--noise-multiplier", "--clip-noise-multiplier", "one")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--strategy identiy", ["--strategy", "'identiy'", "did you mean 'identity'"]),
        ("--strategy=", ["--strategy", "''", "tree"]),
        ("--accountant tigt", ["accountant", "'tigt'", "did you mean 'tight'"]),
        ("--neighboring-relation zeroout", ["relation", "'zeroout'", "did you mean 'zero-out'"]),
        ("--neighboring-relation=", ["relation", "''", "zero-out"]),
        ("--strategy own:Strategy", ["own:Strategy"]),
        ("--strategy tree --bands 3", ["bands = 3", "tree"]),
        ("--strategy banded-toeplitz --bands 0", ["bands = 0", "at least 1"]),
        ("--strategy banded-toeplitz --bands -1", ["bands = -1", "at least 1"]),
        ("--strategy banded-toeplitz --bands 6", ["bands = 6", "5"]),
        ("--strategy banded", ["--bands", "--column-norm-squared"]),
        ("--strategy banded --bands 2", ["--bands", "--column-norm-squared"]),
        ("--strategy banded --bands 6 --column-norm-squared 1", ["bands = 6", "5"]),
        ("--strategy banded --bands 2 --column-norm-squared nan", ["column", "nan"]),
        ("--strategy banded --bands 2 --column-norm-squared 0", ["column", "0.0"]),
        ("--strategy banded --bands 2 --column-norm-squared 1e308", ["column", "1e+308"]),
        ("--column-norm-squared 1", ["--column-norm-squared", "banded"]),
        ("--strategy dense", ["matrix"]),
        ("--strategy dense --matrix nowhere.npy", ["nowhere.npy", "No such file"]),
        ("--strategy dense --matrix good.toml", ["good.toml", "NumPy"]),
        ("--matrix nowhere.npy", ["nowhere.npy", "dense"]),
        ("--sampling-probability 0", ["sampling_probability = 0.0", "above 0"]),
        ("--sampling-probability 1.5", ["sampling_probability = 1.5", "at most 1"]),
        ("--sampling-probability nan", ["sampling_probability = nan"]),
        ("--sampling-probability 0.1 --min-separation 2", ["--sampling-probability", "--min-separation"]),
        ("--sampling-probability 0.1 --epochs 2 --rounds-per-epoch 2", ["--sampling-probability", "--epochs"]),
        ("--sampling-probability 0.1 --cohort-size 2", ["--sampling-probability", "--cohort-size"]),
        ("--min-separation 2 --rounds-per-epoch 2", ["--min-separation", "--rounds-per-epoch"]),
        ("--cohort-size 2", ["--cohort-size", "--population"]),
        ("--population 2", ["--cohort-size", "--population"]),
        ("--cohort-size 5 --population 4", ["cohort_size = 5", "at most 4"]),
        ("--cohort-size 0 --population 4", ["cohort_size = 0", "at least 1"]),
        ("--min-separation 0", ["min", "separation", "0", "at least 1"]),
        ("--min-separation -1", ["min_separation = -1", "at least 1"]),
        ("--max-participations 0", ["max", "participations", "0", "at least 1"]),
        ("--epochs 0 --rounds-per-epoch 5", ["epochs", "0", "at least 1"]),
        ("--epochs 2", ["--epochs", "--rounds-per-epoch"]),
        ("--epochs 2 --rounds-per-epoch 5", ["epochs=2", "5 rounds"]),
        ("--rounds-per-epoch 0", ["rounds", "epoch", "0", "at least 1"]),
        ("--rounds-per-epoch -5", ["rounds", "epoch", "-5", "at least 1"]),
        ("--strategy tree --sampling-probability 0.1", ["random cohorts", "independent noise"]),
        ("--strategy banded-toeplitz --cohort-size 2 --population 10", ["random cohorts", "independent noise"]),
        ("--neighboring-relation add-or-remove-one", ["'add-or-remove-one'", "zero-out"]),
        ("--cohort-size 2 --population 10 --neighboring-relation add-or-remove-one", ["'add-or-remove-one'", "zero-out"]),
    ],
)
def test_account_refuses_flags_that_describe_no_mechanism(refused: Refused, flags: str, words: list[str]) -> None:
    refused([*ACCOUNT, *flags.split()], *words)


def test_account_does_not_advise_a_flag_that_it_does_not_have(refused: Refused) -> None:
    assert "--allow-import" not in refused([*ACCOUNT, "--strategy", "own:Strategy"], "own:Strategy")


# --- single settings ---


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("training.rouns=3", ["training.rouns", "did you mean 'rounds'"]),
        ("trainin.rounds=3", ["[trainin]", "did you mean 'training'"]),
        ("privacy.color=3", ["privacy.color", "noise_multiplier"]),
        ("training.rounds=0", ["training.rounds = 0", "at least 1"]),
        ("training.rounds=-1", ["training.rounds = -1", "at least 1"]),
        ("training.rounds=2.5", ["training.rounds = 2.5", "whole number"]),
        ("training.rounds=true", ["training.rounds = True", "whole number"]),
        ("training.rounds=1e12", ["training.rounds = 1000000000000.0", "whole number"]),
        ("training.rounds=1000000000000", ["training.rounds = 1000000000000", "at most"]),
        ("training.rounds=many", ["training.rounds = 'many'", "whole number"]),
        ("training.rounds=nan", ["training.rounds = nan", "whole number"]),
        ("training.rounds=[2]", ["training.rounds = [2]", "whole number"]),
        ("training.rounds=2024-01-01", ["training.rounds", "whole number"]),
        ("training.rounds=", ["training.rounds = ''", "whole number"]),
        ("training.rounds", ["--set", "training.rounds", "section.key=value"]),
        ("rounds=3", ["--set", "rounds=3", "section.key=value"]),
        ("training.=3", ["--set", "training.=3", "section.key=value"]),
        ("training.rounds=" + "9" * 5000, ["training.rounds"]),
        ("training.seed=-1", ["training.seed = -1", "at least 0"]),
        ("training.seed=1.5", ["training.seed = 1.5", "whole number"]),
        ("training.seed=true", ["training.seed = True", "whole number"]),
        ("training.seed=99999999999999999999999", ["training.seed = 99999999999999999999999", "at most"]),
        ("training.learning_rate=0", ["training.learning_rate = 0.0", "above 0"]),
        ("training.learning_rate=-0.1", ["training.learning_rate = -0.1", "above 0"]),
        ("training.learning_rate=nan", ["training.learning_rate = nan", "finite"]),
        ("training.learning_rate=inf", ["training.learning_rate = inf", "finite"]),
        ("training.learning_rate=fast", ["training.learning_rate = 'fast'", "a number"]),
        ("training.learning_rate=1e300", ["learning_rate", "1e+300"]),
        ("training.server_learning_rate=1e300", ["server_learning_rate", "1e+300"]),
        ("training.learning_rate=1" + "0" * 400, ["training", "too large"]),
        ("training.momentum=1", ["training.momentum = 1.0", "below 1"]),
        ("training.momentum=-0.1", ["training.momentum = -0.1", "at least 0"]),
        ("training.momentum=nan", ["training.momentum = nan", "finite"]),
        ("training.weight_decay=-1", ["training.weight_decay = -1.0", "negative"]),
        ("training.batch_size=0", ["training.batch_size = 0", "at least 1"]),
        ("training.validation=1", ["training.validation = 1.0", "below 1"]),
        ("training.validation=0.999999", ["validation", "0.999999"]),
        ("training.server_optimizer=adam", ["training.server_optimizer = 'adam'", "did you mean 'fedadam'"]),
        ("training.cohort_size=0", ["training.cohort_size = 0", "at least 1"]),
        ("training.cohort_size=11", ["training.cohort_size = 11", "10 clients"]),
        ("training.cohort_size=2.0", ["training.cohort_size = 2.0", "whole number"]),
        ("privacy.mode=dp-fedvg", ["privacy.mode = 'dp-fedvg'", "did you mean 'dp-fedavg'"]),
        ("privacy.clip_norm=0", ["privacy.clip_norm = 0.0", "above 0"]),
        ("privacy.clip_norm=-1", ["privacy.clip_norm = -1.0", "above 0"]),
        ("privacy.clip_norm=nan", ["privacy.clip_norm = nan", "finite"]),
        ("privacy.clip_norm=inf", ["privacy.clip_norm = inf", "finite"]),
        ("privacy.clip_norm=true", ["privacy.clip_norm = True", "a number"]),
        ("privacy.noise_multiplier=0", ["privacy.noise_multiplier = 0.0", 'mode = "none"']),
        ("privacy.noise_multiplier=-1", ["privacy.noise_multiplier = -1.0", "above 0"]),
        ("privacy.noise_multiplier=nan", ["privacy.noise_multiplier = nan", "finite"]),
        ("privacy.noise_multiplier=inf", ["privacy.noise_multiplier = inf", "finite"]),
        ("privacy.noise_multiplier=1e-200", ["noise_multiplier", "1e-200"]),
        ("privacy.noise_multiplier=1e300", ["noise_multiplier", "1e+300"]),
        ('privacy.noise_multiplier="1"', ["privacy.noise_multiplier = '1'", "a number"]),
        ("privacy.epsilon=0", ["privacy.epsilon = 0.0", "above 0"]),
        ("privacy.epsilon=-1", ["privacy.epsilon = -1.0", "above 0"]),
        ("privacy.epsilon=nan", ["privacy.epsilon = nan", "finite"]),
        ("privacy.epsilon=inf", ["privacy.epsilon = inf", "finite"]),
        ("privacy.epsilon=true", ["privacy.epsilon = True", "a number"]),
        ("privacy.stop_epsilon=1e-6", ["privacy.stop_epsilon = 1e-06", "first round"]),
        ("privacy.delta=0", ["privacy.delta = 0.0", "between 0 and 1"]),
        ("privacy.delta=1", ["privacy.delta = 1.0", "between 0 and 1"]),
        ("privacy.delta=-1e-5", ["privacy.delta = -1e-05", "between 0 and 1"]),
        ("privacy.delta=nan", ["privacy.delta = nan", "finite"]),
        ("privacy.strategy=tre", ["privacy.strategy = 'tre'", "did you mean 'tree'"]),
        ("privacy.accountant=tigth", ["privacy.accountant = 'tigth'", "did you mean 'tight'"]),
        ("privacy.neighboring_relation=replace", ["privacy.neighboring_relation = 'replace'", "did you mean 'replace-one'"]),
        ("privacy.sampling=poison", ["privacy.sampling = 'poison'", "did you mean 'poisson'"]),
        ("privacy.noise=none", ["privacy.noise = 'none'", "secure"]),
        ("participation.min_separation=0", ["participation.min_separation = 0", "at least 1"]),
        ("participation.max_participations=0", ["participation.max_participations = 0", "at least 1"]),
        ("data.clients=0", ["data.clients = 0", "at least 1"]),
        ("data.clients=2000", ["data.clients = 2000", "1437"]),
        ("data.alpha=0", ["data.alpha = 0.0", "above 0"]),
        ("data.alpha=nan", ["data.alpha = nan", "finite"]),
        ("data.name=digit", ["data.name = 'digit'", "did you mean 'digits'"]),
        ("data.partition=user", ["partition = 'user'", "iid"]),
        ("model.name=resnet", ["model.name = 'resnet'", "mlp"]),
        ("model.name=cnn", ["model.name = 'cnn'"]),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(refused: Refused, assignment: str, words: list[str]) -> None:
    refused(settings("good.toml", assignment), *words)


# --- settings that do not go together ---


@pytest.mark.parametrize(
    ("config", "assignments", "words"),
    [
        ("good.toml", ["privacy.noise_multiplier=1", "privacy.epsilon=1"], ["noise_multiplier", "epsilon", "give one"]),
        ("good.toml", ["privacy.bands=3"], ["bands = 3"]),
        ("good.toml", ["privacy.strategy=tree"], ["privacy.strategy = 'tree'", "dp-ftrl"]),
        ("good.toml", ["privacy.matrix=C.npy"], ["C.npy", "dense"]),
        ("good.toml", ["privacy.sampling=poisson", "privacy.mode=dp-ftrl"], ["random cohorts", "independent noise"]),
        ("good.toml", ["privacy.sampling=fixed-size", "privacy.mode=dp-ftrl"], ["random cohorts", "independent noise"]),
        (
            "good.toml",
            ["privacy.sampling=fixed-size", "privacy.neighboring_relation=add-or-remove-one"],
            ["'add-or-remove-one'", "zero-out"],
        ),
        ("correlated.toml", ["privacy.neighboring_relation=add-or-remove-one"], ["'add-or-remove-one'", "zero-out"]),
        ("correlated.toml", ["privacy.sampling=poisson"], ["privacy.sampling = 'poisson'", "participation", "leave one"]),
        ("correlated.toml", ["privacy.sampling=fixed-size"], ["privacy.sampling = 'fixed-size'", "leave one"]),
        ("correlated.toml", ["privacy.bands=5"], ["privacy.bands = 5", "4"]),
        ("correlated.toml", ["training.rounds=20", "participation.min_separation=6"], ["min_separation = 6", "10"]),
        ("correlated.toml", ["training.rounds=20", "participation.max_participations=1"], ["max_participations = 1", "4"]),
        ("pattern.toml", ["participation.epochs=3"], ["epochs=3", "4 rounds"]),
        ("pattern.toml", ["participation.pattern=every-round"], ["training.cohort_size = 2", "every-round"]),
        ("correlated.toml", ["participation.rounds_per_epoch=100"], ["min_separation = 2", "leave it out"]),
        ("pattern.toml", ["participation.rounds_per_epoch=100"], ["training.cohort_size = 2", "100"]),
        ("correlated.toml", ["privacy.strategy=dense"], ["matrix"]),
        ("correlated.toml", ["privacy.strategy=dense", "privacy.matrix=nowhere.npy"], ["nowhere.npy", "No such file"]),
        ("correlated.toml", ["privacy.strategy=dense", "privacy.matrix=good.toml"], ["good.toml", "NumPy"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_settings_that_contradict_each_other_are_refused(
    refused: Refused, config: str, assignments: list[str], words: list[str]
) -> None:
    refused(settings(config, *assignments), *words)
    assert not Path("new").exists()


def test_one_layer_with_both_noise_and_budget_is_refused(refused: Refused) -> None:
    Path("both.toml").write_text(GOOD.replace("noise_multiplier = 1.0", "noise_multiplier = 1.0\nepsilon = 2.0"))
    refused(settings("both.toml"), "noise_multiplier = 1.0", "epsilon = 2.0", "give one")


def test_a_config_with_neither_noise_nor_budget_is_refused(refused: Refused) -> None:
    Path("neither.toml").write_text(GOOD.replace("noise_multiplier = 1.0", ""))
    refused(settings("neither.toml"), "noise_multiplier", "epsilon", 'mode = "none"')


def test_a_dense_matrix_of_fewer_rounds_is_refused(refused: Refused) -> None:
    np.save("C.npy", np.eye(2))
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "rounds = 4", "C.npy", "2 rounds")


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.full((4, 4), np.nan), ["nan", "finite"]),
        (np.ones((4, 5)), ["(4, 5)", "square"]),
        (np.ones((4, 4)), ["C[0, 1] = 1.0", "lower triangular"]),
        (np.zeros((4, 4)), ["C[0, 0] = 0.0", "diagonal"]),
        (np.ones(4), ["(4,)", "2 axes"]),
        (np.zeros((0, 0)), ["(0, 0)", "empty"]),
        (np.eye(4, dtype=int), ["C.npy", "int64"]),
        (np.eye(4) * 1e-300, ["C"]),
        (np.eye(4) * 1e300, ["C"]),
    ],
    ids=["nan", "not square", "not triangular", "zeros", "one axis", "empty", "whole numbers", "tiny", "enormous"],
)
def test_a_matrix_that_is_no_strategy_is_refused(refused: Refused, matrix: np.ndarray, words: list[str]) -> None:
    np.save("C.npy", matrix)
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), *words)


@pytest.mark.parametrize("kept", [0, 20, 200])
def test_a_torn_matrix_file_is_refused(refused: Refused, kept: int) -> None:
    np.save("C.npy", np.eye(9))
    Path("C.npy").write_bytes(Path("C.npy").read_bytes()[:kept])
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "C.npy")


def array_of_impossible_size(dtype: str) -> bytes:
    """A .npy file whose header promises 10^15 × 10^15 entries."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({10**15}, {10**15}), }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(100)


def test_a_matrix_file_that_promises_more_than_it_holds_is_refused(refused: Refused) -> None:
    Path("C.npy").write_bytes(array_of_impossible_size("<f8"))
    refused(settings("correlated.toml", "privacy.strategy=dense", "privacy.matrix=C.npy"), "C.npy")


def test_a_pattern_that_the_clients_cannot_keep_is_refused_with_advice_that_works(refused: Refused) -> None:
    error = refused(settings("pattern.toml", "participation.pattern=single", "training.rounds=20"), "20", "10")
    assert "cohort_size to 0" not in error


def test_a_rotation_that_leaves_rounds_without_clients_is_refused(refused: Refused) -> None:
    config = CORRELATED.replace("cohort_size = 2\n", "").replace("min_separation = 2", "rounds_per_epoch = 50")
    Path("rotation.toml").write_text(config.replace("rounds = 4", "rounds = 50"))
    refused(["plan", "rotation.toml"], "rounds_per_epoch", "50", "10")


# --- config files ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["noise_multiplier", "epsilon", "missing"]),
        (GOOD.encode()[:10], ["is not TOML"]),
        (GOOD.encode()[:-12] + b'"', ["is not TOML"]),
        (bytes(range(256)), ["is not TOML"]),
        (bytes(100), ["is not TOML"]),
        (GOOD.encode("utf-16"), ["is not TOML"]),
        (b"#" * 2_000_000, ["2000000 bytes", "at most"]),
        (b"rounds = 3\n" + GOOD.encode(), ["rounds", "section"]),
        (GOOD.encode() + b"[data]\n", ["is not TOML", "data"]),
        (b"a = " + b"[" * 100_000, ["is not TOML"]),
        (b"[training]\nrounds = " + b"9" * 5000, ["bad.toml"]),
    ],
    ids=["empty", "torn", "cut", "binary", "zeros", "utf-16", "huge", "no section", "twice", "deep", "long number"],
)
def test_a_damaged_config_is_refused_by_its_name(refused: Refused, content: bytes, words: list[str]) -> None:
    Path("bad.toml").write_bytes(content)
    refused(settings("bad.toml"), *([] if not content else ["bad.toml"]), *words)
    assert Path("bad.toml").read_bytes() == content
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["train", "plan"])
@pytest.mark.parametrize("path", ["nowhere.toml", "good.toml/inside"])
def test_a_missing_config_is_refused_by_its_name(refused: Refused, command: str, path: str) -> None:
    refused([command, path], path, "is missing")


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_folder_in_place_of_a_config_is_refused(refused: Refused, command: str, workplace: Path) -> None:
    refused([command, str(workplace)], str(workplace), "is a folder", "resume")


def test_a_config_with_a_name_too_long_for_any_file_is_refused(refused: Refused) -> None:
    refused(["train", "x" * 5000], "xxx", "too long")


# --- data ---


def damaged_archive(kind: str) -> bytes:
    """What could be found under the name of a data file, and is not it."""
    arrays = dict.fromkeys(("x_train", "y_train", "x_test", "y_test"), np.arange(5000, dtype=np.uint8))
    np.savez_compressed("whole.npz", **arrays)
    whole = Path("whole.npz").read_bytes()
    match kind:
        case "text":
            return b"not an archive"
        case "empty":
            return b""
        case "torn":
            return whole[:400]
        case "overwritten":
            return whole[:200] + bytes(60) + whole[260:]
        case "other shapes":
            return whole
        case "one array":
            np.save("array.npy", np.ones(3))
            return Path("array.npy").read_bytes()
        case "pickled":
            np.savez("pickled.npz", x_train=np.array([{}], dtype=object))
            return Path("pickled.npz").read_bytes()
        case _:
            with zipfile.ZipFile("impossible.npz", "w") as archive:
                for name in arrays:
                    archive.writestr(f"{name}.npy", array_of_impossible_size("|u1"))
            return Path("impossible.npz").read_bytes()


@pytest.mark.parametrize(
    "kind", ["text", "empty", "torn", "overwritten", "other shapes", "one array", "pickled", "of impossible size"]
)
def test_a_damaged_data_file_is_refused_by_its_name(refused: Refused, kind: str) -> None:
    content = damaged_archive(kind)
    Path("mnist.npz").write_bytes(content)
    refused(settings("good.toml", "data.name=mnist", "data.path=mnist.npz"), "mnist.npz")
    # A file that was left open warns when it is collected.
    gc.collect()
    assert Path("mnist.npz").read_bytes() == content


@pytest.mark.parametrize("path", ["nowhere.npz", "good.toml/inside", "~no_such_user/mnist.npz"])
def test_a_missing_data_file_is_refused_by_its_name(refused: Refused, path: str) -> None:
    refused(settings("good.toml", "data.name=mnist", f"data.path={path}"), Path(path).name)


def test_a_missing_data_folder_in_the_environment_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBBUB_DATA", "nowhere")
    refused(settings("good.toml", "data.name=mnist"), "nowhere", "is missing")


def test_a_data_folder_without_the_data_is_refused(refused: Refused) -> None:
    Path("data").mkdir()
    refused(settings("good.toml", "data.name=mnist", "data.path=data"), "data", "is missing", "mnist.npz")


# --- own code ---

OWN_NAMES = [("good.toml", "data.name"), ("good.toml", "model.name"), ("correlated.toml", "privacy.strategy")]


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
def test_own_code_is_not_run_without_permission(refused: Refused, config: str, setting: str) -> None:
    Path("own_forbidden.py").write_text("raise SystemExit('own code was run')\n")
    refused(settings(config, f"{setting}=own_forbidden:Thing"), "own_forbidden:Thing", "--allow-import")


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
@pytest.mark.parametrize("name", ["no_such_module:Thing", "own_code:Missing", "own_code:", ":Thing", "..own_code:Gathering"])
def test_own_code_that_does_not_exist_is_refused(refused: Refused, config: str, setting: str, name: str) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings(config, f"{setting}={name}"), "--allow-import"], setting.rpartition(".")[2], f"'{name}'")


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
def test_own_code_that_makes_something_else_is_refused(refused: Refused, config: str, setting: str) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings(config, f"{setting}=own_code:seven"), "--allow-import"], "'own_code:seven'", "int")


def test_an_own_model_that_gathers_statistics_is_refused(refused: Refused) -> None:
    Path("own_code.py").write_text(OWN_CODE)
    refused([*settings("good.toml", "model.name=own_code:Gathering"), "--allow-import"], "BatchNorm1d", "GroupNorm")


# --- where a run is put ---


def test_a_folder_that_holds_files_is_left_as_it_is(refused: Refused) -> None:
    Path("new").mkdir()
    Path("new/.thesis.txt").write_text("years of work")
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == {".thesis.txt": hashlib.sha256(b"years of work").hexdigest()}


def test_a_file_in_place_of_the_run_folder_is_left_as_it_is(refused: Refused) -> None:
    Path("new").write_text("years of work")
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert Path("new").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_refused(refused: Refused) -> None:
    Path("file").write_text("years of work")
    refused(["train", "good.toml", "--out", "file/run"], "file/run", "cannot be written", "--out")
    assert Path("file").read_text() == "years of work"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
def test_a_folder_that_the_system_refuses_is_refused(refused: Refused) -> None:
    refused(["train", "good.toml", "--out", "/proc/self/run"], "/proc/self/run", "cannot be written", "--out")


def test_a_file_named_runs_is_left_as_it_is(refused: Refused) -> None:
    Path("runs").write_text("years of work")
    refused(["train", "good.toml"], "runs/good-1", "cannot be written", "--out")
    assert Path("runs").read_text() == "years of work"


def test_a_finished_run_is_not_trained_over(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, settings("good.toml"))
    before = contents(Path("new"))
    refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == before
    output(capsys, ["resume", "new"])
    assert contents(Path("new")) == before


# --- runs to resume ---


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


# --- what programs read ---


STRICT = {
    "independent": "",
    "poisson": "--sampling-probability 0.1",
    "fixed size": "--cohort-size 2 --population 10",
    "toeplitz": "--strategy banded-toeplitz --bands 2",
    "tree": "--strategy tree",
}


@pytest.mark.parametrize("flags", STRICT.values(), ids=STRICT.keys())
@pytest.mark.parametrize("command", [ACCOUNT, CALIBRATE], ids=["account", "calibrate"])
def test_the_json_of_an_account_is_strict(capsys: pytest.CaptureFixture[str], command: list[str], flags: str) -> None:
    answer = strict_json(output(capsys, [*command, *flags.split(), "--json"]))
    assert answer["private"] is True
    assert answer["epsilon"] > 0
    assert answer["delta"] == 1e-5
    assert answer["rounds"] == 5


def test_a_refusal_leaves_the_output_for_programs_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*ACCOUNT, "--json", "--strategy", "tre"])
    assert capsys.readouterr().out == ""


def test_the_plan_of_a_run_without_privacy_has_no_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    answer = strict_json(output(capsys, ["plan", "good.toml", "--set", "privacy.mode=none", "--json"]))
    assert answer["private"] is False
    assert answer["epsilon"] is None


def test_a_run_without_privacy_has_no_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    answer = strict_json(output(capsys, [*settings("good.toml", "privacy.mode=none"), "--json"]))
    assert answer["private"] is False
    assert answer["epsilon"] is None
    rows = [strict_json(line) for line in Path("new/metrics.jsonl").read_text().splitlines()]
    assert [row["epsilon"] for row in rows] == [None, None]


def test_a_run_with_privacy_prints_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    planned = strict_json(output(capsys, ["plan", "good.toml", "--json"]))
    trained = strict_json(output(capsys, [*settings("good.toml"), "--json"]))
    assert planned["private"] is trained["private"] is True
    assert planned["epsilon"] == trained["epsilon"] > 0
