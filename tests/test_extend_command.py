"""``hubbub extend``: more rounds for a finished run, and what every command says of them."""

import hashlib
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import hubbub as package
from hubbub import RunStore, accounting, verify
from hubbub._util import strict_json
from hubbub.experiment.config import resolve
from hubbub.training.run_folder.record import read_run
from malformed import CONFIG, Line
from recorded_runs import SMALL, answer, hubbub, interrupted_at, rebound, trained
from refusals import refused

SETTINGS = CONFIG.replace("rounds = 12", 'rounds = 6, server_optimizer = "fedavgm"').replace("r = 1.0", "r = 2.0")
COINS = SETTINGS.replace("dp-ftrl", "dp-fedavg").replace("participation = { min_separation = 3 }\n", "")
PLAIN = ("--allow-import",)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "may_learn", True)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr("hubbub.report.write", lambda *_: None)
        for name, text in (("one", SETTINGS), ("coins", COINS)):
            (place / f"{name}.toml").write_text(text)
            assert hubbub("train", place / f"{name}.toml", "--out", place / name, *PLAIN) == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, own_code: None) -> Path:
    for name in ("one", "coins"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take most of the time, and are read in one test."""
    if "every_command" not in request.node.name:
        monkeypatch.setattr("hubbub.report.write", lambda *_: None)


def extending(run: str = "one", out: str = "two", *settings: str, rounds: int = 4) -> list[object]:
    told = [part for setting in settings for part in ("--set", setting)]
    return ["extend", run, "--rounds", rounds, "-o", out, *PLAIN, *told]


def extend(*how: str, **more: int) -> int:
    return hubbub(*extending(*how, **more))


def alone(run: str) -> list[tuple[object, int]]:
    promise = replace(read_run(Path(run)).promise, earlier=())
    return list(promise.after(promise.rounds, 1e-5).events)


@pytest.mark.parametrize(("run", "relation"), [("one", "zero-out"), ("coins", "add-or-remove-one")])
def test_acc_12_every_command_states_the_epsilon_of_both_together(run: str, relation: str, place: Path) -> None:
    assert extend(run) == 0
    both = accounting.epsilon([*alone(run), *alone("two")], 1e-5, relation)
    assert both > accounting.epsilon(alone(run), 1e-5, relation)
    shown = accounting.rounded_up(both)
    for command in ("account", "ledger", "evaluate", "verify"):
        more = PLAIN if command == "evaluate" else ()
        assert answer(command, "two", *more)["epsilon"] == pytest.approx(both, rel=1e-9), command
    assert answer("account", run, "two")["epsilon"] == pytest.approx(both, rel=1e-9)
    assert json.loads((place / "two/guarantee.json").read_text())["epsilon"] == pytest.approx(both, rel=1e-9)
    assert package.load(place / "two", allow_import=True).guarantee.epsilon == pytest.approx(both, rel=1e-9)
    assert hubbub("report", "two", "-o", "two.html") == 0
    assert hubbub("publish", "two", "-o", "public") == 0
    assert hubbub("cite", "two") == 0
    for file in ("two.html", "public/report.html", "public/README.md", "two/report.md"):
        assert f"({shown}, 1e-05)" in (place / file).read_text(), file
    assert "together with 1 earlier run" in (place / "public/README.md").read_text()
    assert str(place) not in (place / "public/README.md").read_text() + (place / "public/guarantee.json").read_text()


def test_it_goes_on_again_and_says_what_it_charges(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert extend() == 0
    assert "one: 6 of 6 rounds, epsilon" in capsys.readouterr().out
    assert extend("two", "three") == 0
    assert "together with 2 earlier runs" in capsys.readouterr().out
    # A second branch is charged with the first one, and with what went on from that.
    assert extend("one", "four") == 0
    told = capsys.readouterr().out
    assert "together with 3 earlier runs" in told
    assert re.search(r"The privacy cost also counts other runs over the same people: .*two, .*three", told)
    found = answer("account", "four")["epsilon"]
    everything = [event for run in ("one", "two", "three", "four") for event in alone(run)]
    assert found == pytest.approx(accounting.epsilon(everything, 1e-5, "zero-out"), rel=1e-9)
    assert answer("account", "three", "four")["epsilon"] == pytest.approx(found, rel=1e-9)
    for run in ("two", "three", "four"):
        assert hubbub("verify", run) == 0


@pytest.mark.parametrize("own", ["", "clip_count_stddev = 3.0\n"])
def test_noise_on_a_count_that_followed_from_that_of_updates_follows_again(own: str, tmp_path: Path) -> None:
    settings = SMALL.replace("privacy = { clip_norm = 0.5,", 'privacy = { clipping = "adaptive", clip_norm = 0.5,')
    run = trained(tmp_path, settings.replace("noise_multiplier = 2.0", f"noise_multiplier = 2.0{own and ', '}{own.strip()}"))
    told = ("--rounds", 1, "--set", "privacy.noise_multiplier=9", "-o", tmp_path / "more")
    assert hubbub("extend", run, *told) == (2 if own else 0)


def test_more_rounds_than_before_let_clients_come_as_often_as_these_allow(place: Path) -> None:
    assert extend(rounds=20) == 0
    kept = read_run(place / "two").promise.mechanism.participation
    assert (kept.min_separation, kept.max_participations) == (3, 7)
    assert extend("one", "fewer", rounds=2) == 0
    assert read_run(place / "fewer").promise.mechanism.strategy.bands == 2
    assert extend("one", "three", "participation.max_participations=1", rounds=3) == 0
    assert read_run(place / "three").promise.mechanism.participation.max_participations == 1


@pytest.mark.parametrize("name", ["epsilon", "stop_epsilon"])
def test_a_budget_that_is_spent_is_refused_with_what_was_spent(name: str, place: Path) -> None:
    spent = answer("account", "one")["epsilon"]
    refused(extending("one", "two", f"privacy.{name}={spent / 2}"), f"cost {accounting.rounded_up(spent)}", "raise")
    assert not (place / "two").exists()
    assert not (place / "one/segments.json").exists()


def test_a_run_stops_where_both_together_would_exceed_the_budget(place: Path) -> None:
    budget = answer("account", "coins")["epsilon"] + 0.2
    assert extend("coins", "two", f"privacy.stop_epsilon={budget}", rounds=30) == 3
    found = answer("account", "two")
    assert 1 <= found["rounds"] < 30
    assert found["epsilon"] <= budget
    told = ["extend", "coins", "--rounds", "1", "-o", "no", *PLAIN, "--set"]
    alone = refused([*told, "privacy.stop_epsilon=0.1"], "the earlier runs alone cost").split("alone cost ")[1].split(";")[0]
    refused([*told, f"privacy.stop_epsilon={float(alone) + 0.001}"], "the earlier runs and the first round cost")


REFUSED = {
    "data.clients=11": "had 12",
    'data.partition="dirichlet"': "had 'iid'",
    'model.name="mlp"': "had 'malformed:Line'",
    "training.seed=1": "had 0",
    'privacy.noise="simulation"': "had 'secure'; what extends a simulation is a simulation",
    'privacy.neighboring_relation="replace-one"': "stated 'zero-out'",
    'privacy.earlier_runs=["coins"]': "name it in privacy.earlier_runs as well",
    "privacy.bands=9": "at most training.rounds",
    "training.extends=default": "--set training.extends: is one, as RUN says",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_is_no_longer_the_same_training_is_refused(setting: str, place: Path) -> None:
    refused(extending("one", "two", setting), REFUSED[setting])
    assert not (place / "two").exists()
    assert not (place / "one/segments.json").exists()


def test_settings_of_the_finished_run_that_were_changed_since_are_to_be_restored(place: Path) -> None:
    path = place / "one/config.toml"
    path.write_text(path.read_text().replace("\nseed = 0\n", "\nseed = 5\n"))
    refused(extending("one", "two"), f"seed = 5: by its ledger {place / 'one'} had 0; restore its config.toml")


def test_an_unfinished_run_is_to_be_resumed_first(place: Path) -> None:
    assert hubbub("close", "one") == 0
    assert extend() == 0
    with interrupted_at(3):
        assert extend("one", "half") == 130
    refused(extending("half", "three"), "half: 2 of the 4 rounds", "hubbub resume", "hubbub close")
    # Nor is its sibling extended past it: what it still does would be charged to nobody.
    refused(extending("two", "four"), "half: 2 of the 4 rounds")
    assert hubbub("resume", "half", *PLAIN) == 0
    assert extend("two", "four") == 0


def test_one_that_died_before_its_ledger_goes_on_from_the_same_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hubbub.experiment.engine.folder.train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert extend() == 130
    assert not (place / "two/ledger.jsonl").exists()
    refused(extending("one", "three"), "two, which has not begun its first round")
    assert hubbub("resume", "two", *PLAIN) == 0
    assert hubbub("verify", "two") == 0
    assert extend("one", "three") == 0


def test_settings_that_go_on_from_a_run_are_trained_only_with_its_charge(place: Path) -> None:
    (place / "run.toml").write_text(SETTINGS.replace("rounds = 6", "rounds = 4"))
    by_hand = ("train", "run.toml", "--out", "two", *PLAIN, "--set", 'training.extends="one"')
    refused(by_hand, "the cost of what starts from a run's model counts that run")
    assert hubbub(*by_hand, "--set", 'privacy.earlier_runs=["one"]') == 0
    assert hubbub("verify", "two") == 0
    words = f"training.extends = {str(place / 'one')!r}: an audit starts runs of its own"
    refused(["audit", "two/config.toml", "--allow-import"], words)
    by_hand = (*by_hand[:3], "three", *by_hand[4:], "--set", 'privacy.earlier_runs=["one"]')
    refused(by_hand, "was extended in", "whose cost is not counted here")


def test_acc_12_a_model_that_the_releases_do_not_make_is_refused(place: Path) -> None:
    path = place / "one/model.safetensors"
    content, tensors = path.read_bytes(), load_file(path)
    tensors["0.bias"][0] = torch.nextafter(tensors["0.bias"][0], torch.tensor(torch.inf))
    save_file(tensors, path, {"ledger_head": read_run(place / "one").chain.head_of_rounds})
    assert hubbub("verify", "one") == 1
    refused(extending(), "does not verify (files: model.safetensors is not the file that the ledger binds)")
    rebound(place / "one")
    assert hubbub("verify", "one") == 0
    refused(extending(), "'0.bias' is not what the releases in the ledger make")
    path.unlink()
    rebound(place / "one", files=False)
    refused(extending(), "model.safetensors: is not there; make it: hubbub resume")
    path.write_bytes(content)
    assert hubbub("resume", "one", *PLAIN) == 0
    assert extend() == 0


def test_what_is_extended_on_flower_trains_each_client_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, path = list[str](), place / "one/config.toml"
    path.write_text(re.sub('plan = ".*"', 'plan = "batched-4"', path.read_text()))
    monkeypatch.setattr("hubbub.cli.training._begin", lambda layers, *_: began.append(resolve(*layers).training.plan))
    assert extend("one", "two", "training.engine=flower") == hubbub(*extending(), "--engine", "flower") == 0
    assert began == ["one-by-one"] * 2


def test_a_resumed_run_cannot_be_told_that_it_began_by_itself(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with interrupted_at(3):
        assert extend() == 130
    path = place / "two/config.toml"
    text = path.read_text()
    path.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("extends")))
    capsys.readouterr()
    assert hubbub("resume", "two", *PLAIN) == 0
    assert verify(place / "two").ok
    assert "together with 1 earlier run" in capsys.readouterr().out


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_run_without_releases_is_extended_from_the_checkpoint_of_its_ledger(made: Path, tmp_path: Path, closed: bool) -> None:
    named = [part for setting in ("privacy.noise=simulation", "training.evaluate_every=9") for part in ("--set", setting)]
    for kept in ("true", "false"):
        train = ("train", made / "one.toml", *named, "--set", f"training.keep_releases={kept}", *PLAIN)
        assert hubbub(*train, "--out", tmp_path / kept) == 0
        assert len(RunStore(tmp_path / kept).released()) == (6 if kept == "true" else 0)
        if closed:
            assert hubbub("close", kept) == 0
        assert hubbub("extend", kept, "--rounds", "2", "--out", f"{kept}-2", *PLAIN) == 0
    one, other = (load_file(tmp_path / f"{kept}-2/state/initial.safetensors") for kept in ("true", "false"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert sorted(one) == sorted(other)
    assert verify(tmp_path / "false").ok
    assert package.load(tmp_path / "false", allow_import=True)
    # What the model file does not show: another state of the optimizer.
    manifest = strict_json.loads((tmp_path / "false/state/checkpoint.json").read_bytes())
    (kept,) = (tmp_path / "false/state").glob("checkpoint-*.safetensors")
    tensors = load_file(kept)
    tensors["optimizer.momentum_buffer"] += 1
    save_file(tensors, kept)
    manifest["sha256"] = hashlib.sha256(kept.read_bytes()).hexdigest()
    (tmp_path / "false/state/checkpoint.json").write_bytes(strict_json.canonical(manifest))
    words = "state/checkpoint.json is not the file that the ledger binds"
    refused(["extend", "false", "--rounds", "2", "--out", "false-3", *PLAIN], words)
    assert not verify(tmp_path / "false").ok
