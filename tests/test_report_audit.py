"""An audit in the report of its run: shown beside what is stated, and refused where it is of another run."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hubbub.accounting import rounded_up
from hubbub.errors import ConfigError, RunFolderError
from hubbub.report.audit import read_audit, with_audit, write_audit
from hubbub.report.page import page
from hubbub.report.summary import summary
from recorded_runs import SMALL, hubbub, trained


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in whose folder lies an audit of its settings."""
    place = tmp_path_factory.mktemp("audited")
    run = trained(place, SMALL.replace("= 10 ", '= 10, plan = "one-by-one" ').replace("= 2.0", '= 2.0, noise = "simulation"'))
    assert hubbub("audit", place / "run.toml", "--canaries", 15, "--runs", 1, "--out", run / "audit") == 0
    return run


def changed(audited: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    found = json.loads((audited / "audit" / "audit.json").read_text())
    change(found)
    folder.mkdir()
    (folder / "audit.json").write_text(json.dumps(found))
    return folder / "audit.json"


def test_findings_are_on_disk_before_a_picture_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError):
        write_audit(tmp_path, "run", {"verdict": "holds"})
    assert json.loads((tmp_path / "audit.json").read_text()) == {"verdict": "holds"}


@pytest.mark.slow
def test_an_audit_that_lies_in_a_runs_folder_is_in_its_report(audited: Path) -> None:
    assert hubbub("report", str(audited)) == 0
    text = (audited / "report.html").read_text()
    found = json.loads((audited / "audit" / "audit.json").read_text())
    assert found["sentence"] in text
    assert "Lower bounds on epsilon: " in text
    for one in found["comparisons"]:
        assert one["what"] in text
    assert all(check["name"] in text.replace("&#39;", "'") for check in found["checks"])
    assert "show, with confidence 95 %, that epsilon is at least" in text
    run = summary(audited)
    assert "no lower bound is stated" in run.statement()
    assert "The audit" not in page([run])


@pytest.mark.slow
def test_a_public_page_shows_the_bounds_of_an_audit_and_no_scores(audited: Path) -> None:
    run = with_audit(summary(audited), read_audit(audited / "audit"))
    for public in (False, True):
        text = page([run], public=public)
        assert "Lower bounds on epsilon: " in text
        assert ("Scores of the canaries" in text) != public


@pytest.mark.slow
def test_a_bound_in_the_report_is_rounded_down_and_is_one_on_what_is_stated(audited: Path, tmp_path: Path) -> None:
    def proves(found: dict[str, Any]) -> None:
        stated, other = found["comparisons"]
        assert stated["stated_epsilon"] != other["stated_epsilon"]
        stated["shown"]["epsilon"], other["shown"]["epsilon"] = 0.98769999, 77.0

    run = with_audit(summary(audited), read_audit(changed(audited, tmp_path / "a", proves)))
    assert run.audited_epsilon == 0.9876
    text = page([run])
    assert "≥ 0.9876" in text
    assert ">0.987<" in text
    assert "(11) Audit: attacks on runs of these settings show, with confidence 95 %, that epsilon is at least 0.9876." in text


def test_an_audit_of_more_rounds_than_were_begun_bounds_nothing_and_the_whole_promise_is_drawn(audited: Path) -> None:
    whole = with_audit(summary(audited), read_audit(audited / "audit"))
    begun = replace(whole.recorded.history, rounds=whole.recorded.history.rounds[:1])
    cost = replace(whole.cost, promised=whole.recorded.promise.after(1, 1e-5))
    text = page([replace(whole, recorded=replace(whole.recorded, history=begun), cost=cost)])
    assert "epsilon by audit" not in text
    assert "no lower bound is stated" in text
    assert f">promised: {rounded_up(whole.guarantee.epsilon)}<" in text


def test_a_broken_system_is_stated_and_not_published(audited: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(found: dict[str, Any]) -> None:
        found["verdict"], found["sentence"] = "BROKEN", "BROKEN: <b>the noise</b> is gone."
        found["checks"][0]["passed"] = found["comparisons"][0]["holds"] = False

    broken = with_audit(summary(audited), read_audit(changed(audited, tmp_path / "a", breaks)))
    assert "the audit: BROKEN: <b>the noise</b> is gone." in " ".join(broken.statement().split())
    # Who adds the noise of a simulation or of a real run is nothing that an audit sees.
    real = trained(tmp_path, SMALL.replace("= 10 ", '= 10, plan = "one-by-one" '))
    for folder in (audited / "audit", tmp_path / "a"):
        shutil.copytree(folder, real / "audit", dirs_exist_ok=True)
        assert hubbub("publish", real, "-o", tmp_path / folder.name) == (2 if folder.name == "a" else 0)
    assert "its audit disproves what would be stated" in capsys.readouterr().err
    assert "show, with confidence 95 %" in " ".join((tmp_path / "audit" / "README.md").read_text().split())
    text = page([broken], public=True)
    assert '<p class="warning">BROKEN: &lt;b&gt;the noise&lt;/b&gt; is gone.</p>' in text
    assert "Tests that failed: clients that break the participation pattern." in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["settings"]["training"].update(learning_rate=0.5), "training.learning_rate is 0.5 there and 0.05"),
        (lambda found: found["settings"]["training"].pop("batch_size"), "training.batch_size is not set there and 10 here"),
        (lambda found: found["settings"].update(more={"x": 1}), "more.x is 1 there and not set here"),
        (lambda found: found["stated"].update(mechanism="tree"), "mechanism is 'tree' there"),
        (lambda found: found["stated"].update(delta=1e-6), "delta is 1e-06 there and 1e-05 here"),
        (lambda found: found["stated"].update(rounds=5), "rounds is 5 there and 4 here"),
        (lambda found: found["stated"].update(rounds=3), "the epsilon of 3 rounds is"),
    ],
)
def test_another_runs_audit_is_refused_by_the_difference(audited: Path, tmp_path: Path, change: Callable, words: str) -> None:
    found = read_audit(changed(audited, tmp_path / "a", change))
    with pytest.raises(RunFolderError, match=re.escape(words)) as caught:
        with_audit(summary(audited), found)
    assert "audit this one with 'hubbub audit RUN/config.toml" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("settings"),
        lambda found: found["stated"].update(epsilon="8"),
        lambda found: found["comparisons"][0].pop("shown"),
        lambda found: found["checks"][0].update(value="<script>"),
        lambda found: found["scores"].update(absent=[1, None]),
        lambda found: found.update(settings={"training": 5}),
    ],
)
def test_what_is_no_audit_is_refused(audited: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ConfigError, match="is not an audit of this version"):
        read_audit(changed(audited, tmp_path / "a", change))
