import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import oracle
from hubbub import Mechanism, PoissonSampling, accounting
from hubbub.errors import ConfigError
from hubbub.experiment import config
from hubbub.mechanism.strategies import Identity
from hubbub.models import Mlp
from recorded_runs import answer, invoke, require_ends

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = """
training = { rounds = 4, cohort_size = 5, seed = 3 }
privacy = { noise_multiplier = 1.0, delta = 1e-3, noise = "simulation" }
data = { clients = 30 }
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path / "tiny.toml"


@pytest.mark.parametrize("case", oracle("matrix_factorization")["published_notebook"], ids=lambda case: case["id"])
def test_the_published_guarantees_come_out_of_the_command_line(case: dict) -> None:
    bands, squared, separation = case["bands"], 0.2 if case["bands"] == 400 else 1.0, case["notebook_min_separation"] + 1
    pattern = (
        f"--rounds 2000 --delta 1e-10 --min-separation {separation} --max-participations {case['max_participations']} "
        f"--clip-noise-multiplier {case['l2_clip_noise_multiplier']}"
    ).split()
    tight = answer(*f"account --strategy banded --bands {bands} --column-norm-squared {squared}".split(), *pattern)
    assert answer("account", "--mechanism", f"banded:bands={bands},column-norm-squared={squared}", *pattern) == tight
    assert tight["zcdp_rho"] == pytest.approx(case["zcdp"], rel=1e-12)
    assert tight["epsilon"] < case["eps_pld_delta_1e10"] < tight["epsilon"] * (1 + 2e-7)
    assert tight["l2_sensitivity"] == pytest.approx((squared * case["max_participations"]) ** 0.5)
    assert (tight["accountant"], tight["neighboring_relation"], tight["privacy_unit"]) == ("tight", "zero-out", "client")


def test_a_poisson_account_is_that_of_the_library() -> None:
    ours = answer(*"account --rounds 50 --delta 1e-5 --sampling-probability 0.1 --noise-multiplier 1.2".split())
    mechanism = Mechanism(Identity(50), PoissonSampling(0.1), 1.2)
    assert ours["epsilon"] == accounting.guarantee(mechanism, 1e-5).epsilon
    assert ours["neighboring_relation"] == "add-or-remove-one"
    assert ours["zcdp_rho"] is None


def test_calibrate_then_account_meets_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--delta 1e-6 --strategy identity --rounds 100 --min-separation 10".split()
    found = answer("calibrate", *flags, "--epsilon", "2")
    assert found["epsilon"] <= 2
    again = answer("account", *flags, "--noise-multiplier", repr(found["noise_multiplier"]))
    assert again["epsilon"] == found["epsilon"]
    # A closed output is no traceback.
    monkeypatch.setattr(sys, "stdout", None)
    require_ends("account", *flags, "--noise-multiplier", "1", "--json")


@pytest.mark.parametrize("flag", ["--mechanism", "--strategy"])
def test_a_refusal_leaves_the_output_for_programs_empty(flag: str) -> None:
    assert invoke(*"account --rounds 5 --delta 1e-5 --noise-multiplier 1 --json".split(), flag, "tre", status=2) == ""


def test_flags_beat_the_file_and_the_file_beats_defaults() -> None:
    file = {"training": {"rounds": 7, "batch_size": 3}, "privacy": {"epsilon": 2.0}}
    flags = config.overrides(["training.rounds=9", "privacy.mode=dp-ftrl", "data.path = /tmp/x y"])
    settings = config.resolve(file, flags)
    assert (settings.training.rounds, settings.training.batch_size, settings.training.local_epochs) == (9, 3, 1)
    assert (settings.privacy.mode, settings.data.path) == ("dp-ftrl", "/tmp/x y")  # noqa: S108 # a name, not a file


@pytest.mark.parametrize("section", [section.name for section in fields(config.Config)])
def test_fil_8_every_key_misspelt_is_refused_with_the_right_one(section: str) -> None:
    for key in [key.name for key in fields(getattr(config.Config(), section))]:
        for wrong in (f"{key}x", f"{key[0]}{key}"):
            with pytest.raises(ConfigError, match=rf"{section}\.{wrong}: is no setting .did you mean '{key}'"):
                config.resolve({section: {wrong: 1}})


def rows(run: Path) -> list[dict]:
    return [json.loads(line, parse_constant=pytest.fail) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_all_that_it_should(tiny: Path) -> None:
    shown = invoke("train", str(tiny))
    run = Path("runs/tiny-1")
    assert re.match(r"\([\d.]+, 0\.001\)-differential privacy for each client \(add-or-remove-one relation\)", shown)
    assert "simulation, not for release" in shown.lower()
    metrics = rows(run)
    assert [row["round_index"] for row in metrics] == [0, 1, 2, 3]
    wanted = {"loss", "accuracy", "epsilon", "clipped_fraction", "clients", "clients_per_second", "seconds"}
    assert all(wanted <= row.keys() for row in metrics)
    assert all("clipped_fraction" in row["private"] for row in metrics)
    stated = accounting.guarantee(Mechanism(Identity(4), PoissonSampling(5 / 30), 1.0), 1e-3)
    assert metrics[-1]["epsilon"] == pytest.approx(stated.epsilon)
    model = Mlp((1, 8, 8), 10)
    model.load_state_dict(load_file(run / "model.safetensors"))
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")
    report = (run / "report.md").read_text()
    assert "differential privacy for each client" in report
    assert "not for release" in report
    assert "clipped" not in report.lower().replace("clip_norm", "").replace("clip norm", "")
    for private in ("ledger.jsonl", "metrics.jsonl", "model.safetensors"):
        assert (run / private).stat().st_mode & 0o077 == 0


def test_the_resolved_config_repeats_the_run(tiny: Path) -> None:
    require_ends("train", str(tiny), "--out", "first")
    require_ends("train", "first/config.toml", "--out", "second")
    first, second = (load_file(f"{run}/model.safetensors") for run in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert Path("first/config.toml").read_text() == Path("second/config.toml").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        ["privacy.mode=none"],
        ["privacy.sampling=fixed-size"],
        ["participation.pattern=every-round", "training.cohort_size=30"],
        ["privacy.mode=dp-ftrl"],
        ["privacy.mode=dp-ftrl", "privacy.strategy=tree", "participation.min_separation=2"],
        ["privacy.mode=dp-ftrl", "participation.pattern=fixed-epochs", "participation.rounds_per_epoch=6"],
        ["privacy.mode=dp-ftrl", "participation.pattern=single"],
        ["privacy.noise=secure", "privacy.neighboring_relation=zero-out"],
        ["data.partition=dirichlet", "training.server_optimizer=fedadam", "training.server_learning_rate=0.1"],
    ],
    ids=" ".join,
)
def test_every_mode_is_one_line_away(tiny: Path, changes: list[str]) -> None:
    flags = [part for change in changes for part in ("--set", change)]
    planned = answer("plan", str(tiny), *flags)
    trained = answer("train", str(tiny), *flags, "--out", "run")
    assert trained["epsilon"] == planned["epsilon"]
    assert trained["private"] == (changes != ["privacy.mode=none"]) == (trained["epsilon"] is not None)
    assert rows(Path("run"))[-1]["epsilon"] == trained["epsilon"]
    assert len(rows(Path("run"))) == 4
    assert answer("plan", "run/config.toml")["epsilon"] == planned["epsilon"]


def test_acc_10_a_budget_to_stop_at_is_turned_into_rounds_before_the_first(tiny: Path) -> None:
    whole = answer("plan", str(tiny), "--set", "training.rounds=40")
    part = answer("train", str(tiny), "--set", "training.rounds=40", "--set", "privacy.stop_epsilon=3", status=3)
    assert part["epsilon"] <= 3 < whole["epsilon"]
    assert 1 <= part["rounds"] < 40
    mechanism = Mechanism(Identity(40), PoissonSampling(5 / 30), 1.0)
    assert accounting.guarantee(mechanism, 1e-3, rounds=part["rounds"] + 1).epsilon > 3


@pytest.mark.slow
def test_cra_13_ctrl_c_leaves_a_run_that_resumes_to_the_same_model(tiny: Path) -> None:
    many = ["--set", "training.rounds=30"]
    require_ends("train", str(tiny), *many, "--out", "whole")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hubbub", "train", str(tiny), *many, "--out", "cut"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not (Path("cut/metrics.jsonl").exists() and len(rows(Path("cut"))) >= 5) and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert "hubbub resume cut" in said
    assert "Traceback" not in said
    done = len(rows(Path("cut")))
    assert 5 <= done < 30
    require_ends("resume", "cut")
    assert [row["round_index"] for row in rows(Path("cut"))][-1] == 29
    whole, resumed = (load_file(f"{run}/model.safetensors") for run in ("whole", "cut"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_finished_run_whose_release_is_damaged_promises_nothing(tiny: Path) -> None:
    require_ends("train", str(tiny), "--out", "run")
    release = Path("run/state/releases/2.safetensors")
    content = bytearray(release.read_bytes())
    content[-1] ^= 1
    release.write_bytes(content)
    assert invoke("resume", "run", status=2) == ""


def test_the_digits_example_learns_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained = answer("train", str(EXAMPLES / "digits.toml"))
    assert trained["epsilon"] <= 8
    assert trained["accuracy"] > 0.85


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("mnist*.toml")))
def test_every_mnist_example_is_a_run(name: str, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hubbub.experiment.build import build

    monkeypatch.setenv("HUBBUB_DATA", str(data_folder))
    run = build(config.resolve(config.load(EXAMPLES / name)))
    assert len(run.dataset.train_inputs) == 60_000
    assert sum(p.numel() for p in run.model.parameters()) == {"cnn": 21_840, "mlp": 50_890}[run.config.model.name]


@pytest.mark.parametrize("path", sorted((EXAMPLES / "records").glob("*.toml")), ids=lambda path: path.stem)
def test_every_record_has_settings_that_are_known(path: Path) -> None:
    found = config.resolve(config.load(path))
    of_cifar10 = "patches" if path.stem.endswith("patches") else "mirrored-scattering"
    assert found.data.features == (of_cifar10 if path.stem.startswith("cifar10") else "scattering")
    assert found.privacy.noise == "secure"
