"""The report as a page: complete, in one piece, true to the ledger, and without private numbers where it is public."""

import importlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hubbub.report import markdown
from hubbub.report.citations import bibtex, cited
from hubbub.report.page import Fact, page
from hubbub.report.summary import Strength, summary
from recorded_runs import hubbub
from refusals import refused

SEPARATED = {"participation.pattern": "min-separation", "participation.min_separation": 3}
SETTINGS = {
    "independent": {},
    "correlated": {"privacy.mode": "dp-ftrl", "privacy.strategy": "banded-toeplitz", "privacy.bands": 3} | SEPARATED,
    "bare": {"privacy.mode": "none"},
    "held out": {"training.validation": 0.2, "privacy.noise": "simulation"},
    "adaptive": {"privacy.clipping": "adaptive"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place, made = tmp_path_factory.mktemp("runs"), {}
    for name, settings in SETTINGS.items():
        made[name] = place / name.replace(" ", "-")
        config = place / "run.toml"
        private = "" if name == "bare" else "clip_norm = 0.5\nnoise_multiplier = 2.0\n"
        head = f"[training]\nrounds = 6\ncohort_size = 10\n[privacy]\n{private}[data]"
        config.write_text(f'{head}\nname = "digits"\nclients = 40\n')
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        assert hubbub("train", config, "--out", made[name], *flags) == 0, name
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_leaves_a_page_that_tells_what_its_ledger_tells(runs: dict[str, Path], name: str) -> None:
    text = (runs[name] / "report.html").read_text()
    run = summary(runs[name])
    assert plain(run.guarantee.sentence()) in plain(text)
    assert run.recorded.chain.head in text
    for assumption in run.guarantee.assumptions:
        assert plain(assumption.text) in plain(text)
    for what in run.guarantee.not_covered if run.guarantee.private else ():
        assert plain(what) in plain(text)
    last = run.rows[-1]
    assert f"{100 * last['accuracy']:.2f} %" in text
    assert ("Simulation, not for release" in text) == run.guarantee.simulation
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "@import" not in text


def plain(text: str) -> str:
    found: list[str] = []
    parser = HTMLParser(convert_charrefs=True)
    parser.handle_data = found.append  # type: ignore[method-assign]
    parser.feed(text)
    return re.sub(r"\s+", " ", " ".join(found)).strip()


def test_a_public_page_has_nothing_of_clients_in_it(runs: dict[str, Path]) -> None:
    for name in ("correlated", "held out", "adaptive"):
        open_page, full = page([summary(runs[name])], public=True), (runs[name] / "report.html").read_text()
        for private in ("Updates clipped.", "Time and traffic", "Updates clipped over rounds"):
            assert private in full
            assert private not in open_page
        assert ("Participation" in full) == ("promised: at most 2" in full) == (name == "correlated")
        assert "Participation." not in open_page
        held_out = summary(runs[name]).rows[-1]["accuracy"]
        assert (f"{100 * held_out:.2f} %" in open_page) == (name != "held out")
        assert "For the operator" not in open_page


def test_a_public_page_has_public_facts_alone(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="public"):
        Fact("most rounds of a client", "2")  # type: ignore[call-arg]
    both = [Fact("rounds", "six of six", public=True), Fact("most rounds of a client", "two of two", public=False)]
    monkeypatch.setattr(importlib.import_module("hubbub.report.page"), "facts", lambda run: iter(both))
    run = summary(runs["independent"])
    full, open_page = page([run]), page([run], public=True)
    assert ("six of six" in full, "two of two" in full) == (True, True)
    assert ("six of six" in open_page, "two of two" in open_page) == (True, False)


@pytest.mark.slow
def test_what_a_run_is_called_cannot_write_into_the_page(runs: dict[str, Path], tmp_path: Path) -> None:
    evil = Path(shutil.copytree(runs["independent"], tmp_path / '<script>alert(1)<!--"&'))
    for shown in (page([summary(evil)]), page([summary(runs["independent"]), summary(evil)])):
        assert "<script" not in shown
        assert "&lt;script&gt;alert(1)" in shown


def test_a_picture_shows_names_as_they_are_and_whole_rounds(runs: dict[str, Path]) -> None:
    run = summary(runs["independent"])
    text = page([replace(run, name=name, rows=run.rows[:1]) for name in ("#0072b2", "a long name " * 9)])
    assert text.count(">#0072b2</text>") >= 2
    assert not re.search(r">0\.9\d+</text>", text)


def edited(run: Path, folder: Path, edit: Callable[[dict], object]) -> Path:
    """A copy of a run in whose metrics each row was edited."""
    shutil.copytree(run, folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        edit(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_what_was_spent_is_told_by_the_ledger_and_not_by_the_metrics(runs: dict[str, Path], tmp_path: Path) -> None:
    run = edited(runs["independent"], tmp_path / "independent", lambda row: row.update(epsilon=1e-9))
    assert page([summary(run)]) == page([summary(runs["independent"])])
    kept = [json.loads(line)["epsilon"] for line in (runs["independent"] / "metrics.jsonl").read_text().splitlines()]
    assert [summary(run).epsilon_after(count) for count in range(1, 7)] == pytest.approx(kept)


@pytest.mark.slow
@pytest.mark.parametrize("edit", [lambda row: row.pop("private"), lambda row: row.update(private=[])], ids=["none", "empty"])
def test_held_out_numbers_are_private_whatever_metrics_say(runs: dict[str, Path], tmp_path: Path, edit: Callable) -> None:
    run = edited(runs["held out"], tmp_path / "held-out", edit)
    assert not summary(run).public
    assert f"{100 * summary(run).rows[-1]['accuracy']:.2f}" not in page([summary(run)], public=True)
    right = (run / "config.toml").read_text()
    (run / "config.toml").write_text(right + "# other words\n")
    refused(["report", run], "config.toml is not the file that the ledger binds, and a report would show its settings")
    (run / "config.toml").unlink()
    assert not summary(run).public


@pytest.mark.slow
def test_a_public_page_shows_of_several_runs_what_is_public(runs: dict[str, Path]) -> None:
    both = [summary(runs["independent"]), summary(runs["held out"])]
    text = page(both, public=True)
    drawn = next(svg for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL) if "Accuracy over rounds" in svg)
    assert "held-out" not in drawn
    assert "var(--series-0)" in drawn
    assert "On public test data." in text
    assert "On public test data; held-out: on held-out training data" in page(both)


@pytest.mark.slow
def test_who_broke_a_pattern_is_not_told_to_all(runs: dict[str, Path]) -> None:
    run = summary(runs["correlated"])
    broken = replace(run.cost, breaches=("2 clients broke it, such as 0123abcd in rounds [0, 1]",))
    run = replace(run, cost=broken)
    assert "0123abcd" in page([run])
    assert "0123abcd" not in page([run], public=True) + run.statement()
    assert "2 clients broke it" in page([run], public=True)
    assert "2 clients broke it" in run.statement()


def test_the_sum_is_estimated_from_what_was_released_and_the_noise() -> None:
    rng = np.random.default_rng(0)
    dim, stddev, signal = 4000, 2.0, 90.0
    direction = rng.normal(size=dim)
    vector = signal * direction / np.linalg.norm(direction)
    released = np.array([np.linalg.norm(vector + rng.normal(size=dim) * stddev) for _ in range(200)])
    found = Strength(np.arange(1, 201), released, np.full(200, stddev * np.sqrt(dim)))
    # Of 41 rounds: about one percent; twelve standard errors.
    assert np.nanmax(np.abs(found.signal - signal)) < 12 * stddev * np.sqrt(2 * dim) * stddev / (2 * signal) / np.sqrt(21)


def test_a_run_cites_what_it_relies_on_and_nothing_else(runs: dict[str, Path]) -> None:
    keys = {name: set(cited(summary(path))) for name, path in runs.items()}
    assert "kalinin2024banded" in keys["correlated"] - keys["independent"]
    assert "zhu2022optimal" in keys["independent"] - keys["correlated"]
    assert "andrew2021differentially" in keys["adaptive"] - keys["independent"]
    assert keys["bare"] == {"hubbub", "mcmahan2017communication"}
    alone = replace(summary(runs["independent"]), config="", settings={})
    assert "beutel2020flower" not in cited(alone)
    on_flower = replace(alone.recorded.promise, settings={**alone.recorded.promise.settings, "engine": "flower"})
    assert "beutel2020flower" in cited(replace(alone, recorded=replace(alone.recorded, promise=on_flower)))
    for found in keys.values():
        entries = bibtex(sorted(found))
        assert len(re.findall(r"^@\w+\{", entries, flags=re.MULTILINE)) == len(found)
        assert entries.count("{") == entries.count("}")


def test_a_report_names_the_aborted_rounds(runs: dict[str, Path]) -> None:
    run = summary(runs["independent"])
    assert "aborted" not in markdown(run)
    assert "for choosing settings" not in markdown(replace(run, public=False, rows=[]))
    history = run.recorded.history
    rounds = [history.rounds[0], replace(history.rounds[1], release=None, state="aborted"), *history.rounds[2:]]
    aborted = replace(run, recorded=replace(run.recorded, history=replace(history, rounds=rounds)))
    assert "Round 2 was aborted: the privacy cost stays spent" in markdown(aborted)
    assert "Aborted, at full privacy cost: round 2." in page([aborted])
