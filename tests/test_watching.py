"""Following a run: what its ledger tells, as it goes, without a byte or a lock in its folder."""

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from hubbub import config as configs
from hubbub.accounting import rounded_up
from hubbub.build import build
from hubbub.cli import main, watching
from hubbub.engine.folder import RunInFolder
from hubbub.errors import LedgerError, RunFolderError
from hubbub.report.followed import Followed, worker
from hubbub.report.told import told
from hubbub.training import RunStore

ROUNDS = 4


def begun(folder: Path, **privacy: object) -> RunInFolder:
    settings = {
        "training": {"rounds": ROUNDS, "cohort_size": 10, "evaluate_every": 2, "plan": "one-by-one"},
        "privacy": {"clip_norm": 0.5, **(privacy or {"noise_multiplier": 2.0})},
        "data": {"name": "digits", "clients": 40},
    }
    return RunInFolder.begun(build(configs.resolve(settings)), folder)


def rounds_of(run: RunInFolder) -> Iterator[object]:
    return run.rounds(run.run.population)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = begun(tmp_path_factory.mktemp("watched") / "done")
    assert len(list(rounds_of(run))) == ROUNDS
    run.finish()
    return run.folder


def content(folder: Path) -> dict[str, tuple[str, int]]:
    """Of every file: what it holds, and when it was changed."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def watched(folder: Path, capsys: pytest.CaptureFixture[str], status: int = 0) -> list[str]:
    with pytest.raises(SystemExit) as stop:
        main(["watch", str(folder)])
    output = capsys.readouterr()
    assert stop.value.code == status, output
    return (output.out if status == 0 else output.err).splitlines()


def between_looks(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    def pause(seconds: float) -> None:
        assert seconds == 2.0
        happens()

    monkeypatch.setattr("hubbub.cli.watching.time.sleep", pause)


def test_a_run_is_followed_round_by_round_until_it_ends_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "run")
    rows = rounds_of(run)
    next(rows)
    left: dict[str, tuple[str, int]] = content(run.folder)

    def goes_on() -> None:
        assert content(run.folder) == left
        next(rows, None)
        left.clear()
        left.update(content(run.folder))

    between_looks(monkeypatch, goes_on)
    lines = watched(run.folder, capsys)
    assert [line.split("  ")[0] for line in lines[:ROUNDS]] == [f"round {number}/{ROUNDS}" for number in range(1, ROUNDS + 1)]
    assert "accuracy" not in lines[0]
    assert "accuracy" in lines[1]
    assert all(line.endswith(" left") for line in lines[: ROUNDS - 1])
    assert lines[-1] == f"All {ROUNDS} rounds are done."
    assert content(run.folder) == left
    found = told(run.folder)
    for number, line in enumerate(lines[:ROUNDS], start=1):
        assert f"epsilon {rounded_up(found.epsilon_after(number))}  " in f"{line}  "


def test_a_watcher_does_not_keep_a_run_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "run")
    rows = rounds_of(run)

    def takes_the_lock() -> None:
        # Refused where anybody else has it.
        with RunStore(run.folder).locked():
            pass
        next(rows)

    # The run is being prepared by a process that is there.
    looks = iter([takes_the_lock, *[lambda: next(rows, None)] * ROUNDS])
    between_looks(monkeypatch, lambda: next(looks)())
    lines = watched(run.folder, capsys)
    assert lines[0] == f"{run.folder}: has not begun its first round; process {os.getpid()} is preparing it"
    assert lines[1].startswith(f"round 1/{ROUNDS}")


def test_what_was_spent_is_by_the_ledger_and_not_by_the_metrics(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    rows = [json.loads(line) | {"epsilon": 1e-9} for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    standing = Followed(run).look()
    assert standing.epsilon == told(finished).guarantee.epsilon == standing.promised
    (run / "ledger.jsonl").write_bytes(b"".join((run / "ledger.jsonl").read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(LedgerError, match=f"metrics.jsonl goes to {ROUNDS} rounds"):
        Followed(run).look()


def test_a_finished_run_says_so_at_once(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    between_looks(monkeypatch, lambda: pytest.fail("nothing more is to come"))
    lines = watched(finished, capsys)
    assert lines[-2:] == [f"All {ROUNDS} rounds are done.", f"Report: {finished / 'report.html'}"]
    assert lines[1].startswith("Time went to: ")
    assert "train, clip, sum" in lines[1]


def test_a_run_at_which_nobody_works_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begun(tmp_path / "run")
    rows = rounds_of(run)
    next(rows)
    assert worker(run.folder) == os.getpid()
    rows.close()  # type: ignore[attr-defined]
    # The process of which the lock tells is there, and does something else.
    assert worker(run.folder) is None
    assert watched(run.folder, capsys)[-1] == (
        f"No process is at work on it: 1 of {ROUNDS} rounds are done. Go on with: hubbub resume {run.folder}"
    )


def test_a_folder_that_has_no_metrics_is_followed_by_its_ledger(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("metrics.jsonl", "config.toml", "report*"))
    lines = watched(folder, capsys)
    assert lines[0].startswith(f"round {ROUNDS}/{ROUNDS}  epsilon ")
    assert lines[1] == f"All {ROUNDS} rounds are done."


def test_a_folder_that_is_no_run_or_was_never_begun_gets_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no folder; name the folder that 'hubbub train' made" in watched(tmp_path / "nowhere", capsys, 2)[0]
    assert "is no run (neither config.toml nor ledger.jsonl there)" in watched(tmp_path, capsys, 2)[0]
    run = begun(tmp_path / "run")
    (run.folder / "state" / "lock").write_text("999999999\n")
    assert f"has not begun its first round; begin it with 'hubbub resume {run.folder}'" in watched(run.folder, capsys, 2)[0]
    with pytest.raises(SystemExit) as stop:
        main(["watch", str(run.folder), "--interval", "0.01"])
    assert stop.value.code == 2
    assert "--interval = 0.01: must be from 0.1 to 3600 seconds" in capsys.readouterr().err


@pytest.mark.parametrize("lock", ["", "-1\n", "0\n", "no number", "9" * 19 + "\n", "9" * 30])
def test_a_lock_that_names_no_process_is_no_worker(lock: str, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "config.toml").touch()
    (tmp_path / "state" / "lock").write_text(lock)
    with pytest.raises(RunFolderError, match="has not begun"):
        Followed(tmp_path).begun()


def test_ctrl_c_leaves_the_watcher_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "run")
    rows = rounds_of(run)
    next(rows)

    def interrupted() -> None:
        raise KeyboardInterrupt

    between_looks(monkeypatch, interrupted)
    assert watched(run.folder, capsys)[-1] == f"Stopped watching. Watch it again with: hubbub watch {run.folder}"
    assert len(list(rows)) == ROUNDS - 1


@pytest.mark.parametrize("privacy", [{}, {"mode": "none", "noise": "simulation"}], ids=["private", "bare"])
def test_a_terminal_shows_all_of_it_in_one_place(
    privacy: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "a [bold]run", **privacy)
    rows = rounds_of(run)
    next(rows)
    screen = Console(file=io.StringIO(), force_terminal=True, width=110, color_system=None, record=True)
    monkeypatch.setattr(watching, "console", lambda: screen)
    between_looks(monkeypatch, lambda: next(rows, None))
    watching.watch(run.folder, 2.0)
    shown = screen.export_text()
    for words in ("a [bold]run", f"round {ROUNDS} of {ROUNDS}", "speed", "time goes to", "clients/s"):
        assert words in shown
    # A letter for each of the two rounds that were measured.
    assert re.search(r"accuracy +[\d.]+%  [▁-█]{2} ", shown)
    assert ("∞: nothing is promised" in shown) == bool(privacy)
    assert ("at delta 1e-05, by the ledger" in shown) != bool(privacy)
