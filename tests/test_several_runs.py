"""What several runs over the same people cost together."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hubbub import accounting
from hubbub.accounting import Gaussian, PoissonSampled
from hubbub.errors import ConfigError, LedgerError
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.multi_run import compose_runs, run_charges
from hubbub.ledger.promise import Promise
from hubbub.mechanism import gaussian
from hubbub.mechanism.participation import FixedEpochs
from hubbub.training.run_folder.record import read_run
from recorded_runs import BAND, COIN, EVEN, THREE, answer, hubbub, recorded


def test_acc_12_gaussian_runs_add_their_squared_mu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = recorded(tmp_path / "one", BAND, THREE, close=True)
    two = recorded(tmp_path / "two", EVEN, [["a"], ["b"]] * 3, secret=1)
    found = answer(capsys, "account", one, two)
    mu = math.hypot(BAND.after(3, 1e-5).gdp_mu, EVEN.after(6, 1e-5).gdp_mu)
    assert found["gdp_mu"] == pytest.approx(mu, rel=1e-12)
    assert found["epsilon"] == pytest.approx(gaussian.epsilon(1e-5, 1 / mu), rel=1e-9)
    assert [(run["state"], run["rounds"]) for run in found["runs"]] == [("closed", 3), ("finished", 6)]
    assert answer(capsys, "account", two, one)["epsilon"] == pytest.approx(found["epsilon"], rel=1e-12)
    assert answer(capsys, "account", one)["epsilon"] == BAND.after(3, 1e-5).epsilon


def test_acc_9_acc_12_random_and_other_runs_compose_their_events_under_the_relation_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = recorded(tmp_path / "one", BAND, THREE), recorded(tmp_path / "two", COIN, THREE[:2], secret=1)
    assert hubbub("account", one, two) == 2
    assert "'add-or-remove-one' and 'zero-out'" in capsys.readouterr().err
    assert hubbub("account", one, two, "--neighboring-relation", "add-or-remove-one") == 2
    assert "no theorem covers" in capsys.readouterr().err
    for relation in ("zero-out", "replace-one"):
        found = answer(capsys, "account", one, two, "--neighboring-relation", relation, "--delta", "1e-6")
        mu = BAND.after(3, 1e-5).gdp_mu
        events = [(Gaussian(1 / mu), 1), (PoissonSampled(1.5, 0.2), 2)]
        assert found["epsilon"] == pytest.approx(accounting.epsilon(events, 1e-6, relation), rel=1e-9)
        assert found["delta"] == 1e-6
        assert found["without_amplification"]["epsilon"] > found["epsilon"]


def test_runs_that_hide_other_units_are_refused(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", BAND, THREE)
    two = recorded(tmp_path / "two", replace(EVEN, privacy_unit="example"), THREE[:2], secret=1)
    with pytest.raises(ConfigError, match="hides each 'example'"):
        compose_runs(run_charges([read_run(one), read_run(two)]), 1e-5)


def test_acc_12_one_run_is_counted_once_however_it_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path / "run", BAND, THREE)
    copy, fork = (Path(shutil.copytree(run, tmp_path / name)) for name in ("copy", "fork"))
    assert hubbub("account", run, copy) == 2
    assert "are the same ledger" in capsys.readouterr().err
    recorded(run, BAND, [["d"]])
    assert hubbub("account", copy, run) == 2
    assert "copy: is an older copy of" in capsys.readouterr().err
    recorded(fork, BAND, [["e"]])
    assert hubbub("account", fork, run) == 2
    assert "were resumed separately" in capsys.readouterr().err
    other = recorded(tmp_path / "other", EVEN, [["a"]])
    assert hubbub("account", run, other) == 2
    assert "under one key" in capsys.readouterr().err


def test_a_simulation_is_labelled_and_a_run_without_privacy_costs_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = recorded(tmp_path / "real", BAND, THREE)
    simulated = recorded(tmp_path / "simulated", replace(EVEN, simulation=True), THREE[:2], secret=1)
    assert hubbub("account", real, simulated) == 0
    told = capsys.readouterr().out
    assert "; simulation, not for release" in told
    assert "Not for release: a simulation is among the runs" in told
    bare = recorded(tmp_path / "bare", Promise(3, None), THREE, secret=2)
    assert answer(capsys, "account", real, bare)["epsilon"] is None
    assert hubbub("account", bare, real) == 0
    assert "no privacy guarantee" in capsys.readouterr().out


def test_what_is_worse_than_promised_is_reported_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as edited:
        edited.setattr(FixedEpochs, "may_follow", lambda _, counts, *ignored: np.ones(len(counts), dtype=bool))
        run = recorded(tmp_path / "run", EVEN, [["a"]] * 6)
    real = gaussian.epsilon(1e-5, 3.0 / math.sqrt(6))
    happened, promised = accounting.rounded_up(real), accounting.rounded_up(EVEN.after(6, 1e-5).epsilon)
    for command in ("account", "ledger", "verify"):
        capsys.readouterr()
        assert hubbub(command, run) == (1 if command == "verify" else 0)
        shown = capsys.readouterr().out
        assert "orse than promised" in shown
        assert f"promised {promised}" in shown or f"promised epsilon {promised}" in shown
        assert f"happened {happened}" in shown
    assert answer(capsys, "ledger", run)["epsilon"] == pytest.approx(real, rel=1e-9)
    found = answer(capsys, "account", run, recorded(tmp_path / "other", BAND, THREE, secret=1))
    assert found["runs"][0]["worse_than_promised"] is True
    assert found["gdp_mu"] == pytest.approx(math.hypot(math.sqrt(6) / 3, BAND.after(3, 1e-5).gdp_mu), rel=1e-9)
    # Who would go on with it is refused.
    with pytest.raises(LedgerError, match="1 clients broke FixedEpochs"):
        Ledger(EVEN, bytes(32), run / "ledger.jsonl")


def test_acc_12_acc_13_a_statement_of_runs_names_every_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        recorded(tmp_path / name, promise, THREE, secret=i) for i, (name, promise) in enumerate((("one", BAND), ("two", EVEN)))
    ]
    assert hubbub("account", *runs, "--statement") == 0
    shown = capsys.readouterr().out
    assert all(read_run(run).chain.head in shown for run in runs)
    assert "(12) Record" in shown
