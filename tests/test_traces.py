"""Who accounts for a run looks at its whole folder: a ledger that was rolled back is refused before a charge is read."""

import json
import shutil
from pathlib import Path

import pytest

from conftest import raising
from hubbub.errors import LedgerError, RunFolderError
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.ledger.ledger import end_run
from hubbub.ledger.multi_run import costs_of_ended_runs, run_charges
from hubbub.training import RunStore
from hubbub.training.run_folder.record import read_run
from recorded_runs import hubbub
from release_paths import ROUNDS, some_rounds

SECOND = 2


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def cut(folder: Path, lines: int, name: str = "cut") -> Path:
    """A copy whose ledger ends earlier by so many lines."""
    less = Path(shutil.copytree(folder, folder.with_name(name)))
    (less / "ledger.jsonl").write_bytes(b"".join(lines_of(folder)[:-lines]))
    return less


def without_releases(folder: Path, first: int = 0) -> Path:
    for path in (folder / "state" / "releases").iterdir():
        if int(path.stem) >= first:
            path.unlink()
    return folder


@pytest.mark.parametrize("rounds", [2, 5, 6])
@pytest.mark.parametrize("keep", [True, False], ids=["all releases", "no old releases"])
def test_cra_9_a_ledger_cut_by_any_number_of_records_is_refused_or_costs_what_the_whole_did(
    tmp_path: Path, rounds: int, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.training.rounds.CHECKPOINT_EVERY", 2)
    run = tmp_path / "run"
    some_rounds(run, rounds, keep_releases=keep)
    (whole,) = run_charges([read_run(run)])
    refused = 0
    for number in range(1, len(lines_of(run)) + 1):
        less = cut(run, number, f"cut-{number}")
        try:
            (found,) = run_charges([read_run(less)])
        except LedgerError:
            refused += 1
            continue
        # The release of the last round is there, and the round still begun: it was charged then.
        assert number == 1
        assert (found.rounds, found.events) == (whole.rounds, whole.events)
    assert refused >= len(lines_of(run)) - 1


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_cra_9_each_kind_of_trace_alone_tells_that_the_ledger_was_rolled_back(tmp_path: Path, closed: bool) -> None:
    some_rounds(tmp_path / "run", ROUNDS)
    checkpoint = without_releases(cut(tmp_path / "run", 4, "checkpoint"))
    metrics = without_releases(cut(tmp_path / "run", 4, "metrics"), first=4)
    (metrics / "state" / "checkpoint.json").unlink()
    cohorts = Path(shutil.copytree(metrics, tmp_path / "cohorts"))
    whole = (metrics / "ledger.cohorts").read_bytes()
    (metrics / "ledger.cohorts").write_bytes(whole[: History.of_chain(read_chain(metrics / "ledger.jsonl")).cohorts_size])
    unmeasured = Path(shutil.copytree(metrics, tmp_path / "unmeasured"))
    rows = [{"round_index": t, "epsilon": 1.0} for t in range(ROUNDS)]
    (metrics / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    key = Path(shutil.copytree(unmeasured, tmp_path / "key"))
    shutil.copy(key / "state" / "keys" / "epoch-0", key / "state" / "keys" / "epoch-1")
    for folder, words in (
        (checkpoint, "state/checkpoint.json"),
        (metrics, "metrics.jsonl goes to 6"),
        (key, "key of incarnation 1"),
        (cohorts, "ledger.cohorts has the cohorts of more"),
    ):
        if closed:
            end_run(folder / "ledger.jsonl", early=True)
        with pytest.raises(LedgerError, match=words):
            read_run(folder)
    # What all of them have in common is believed.
    assert len(read_run(unmeasured).history.rounds) == 4


def test_cra_7_a_run_that_went_on_twice_from_one_copy_is_not_charged_once(tmp_path: Path) -> None:
    some_rounds(tmp_path / "run", SECOND)
    fork = Path(shutil.copytree(tmp_path / "run", tmp_path / "fork"))
    for folder in (tmp_path / "run", fork):
        some_rounds(folder, ROUNDS)
    (fork / "state" / "checkpoint.json").unlink()
    shutil.copy(tmp_path / "run" / "ledger.jsonl", fork / "ledger.jsonl")
    with pytest.raises(LedgerError, match=r"state/releases/2\.safetensors is not what it says was released"):
        read_run(fork)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"rounds": 0, "head": ""}', b'{"rounds": true, "head": ""}', b"\xff", b"[" * 100_000]
)
def test_a_manifest_that_cannot_be_read_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    some_rounds(tmp_path, ROUNDS)
    (tmp_path / "state" / "checkpoint.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"checkpoint\.json.*restore it"):
        read_run(tmp_path)


def test_a_run_is_read_whose_checkpoint_is_of_another_version(tmp_path: Path) -> None:
    some_rounds(tmp_path, ROUNDS)
    path = tmp_path / "state" / "checkpoint.json"
    manifest = json.loads(path.read_bytes())
    path.write_text(json.dumps({"rounds": manifest["rounds"], "head": manifest["head"], "files": {}, "schema": 1}))
    assert read_run(tmp_path).rounds_left == 0
    path.write_text(json.dumps({"rounds": manifest["rounds"] - 1, "head": manifest["head"], "files": {}, "schema": 1}))
    with pytest.raises(LedgerError, match="with a head that it never had"):
        read_run(tmp_path)


def test_a_round_under_way_or_aborted_is_no_sign_of_a_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_rounds(tmp_path, SECOND)
    with monkeypatch.context() as crash:
        crash.setattr(RunStore, "save_release", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            some_rounds(tmp_path, ROUNDS)
    assert len(read_run(tmp_path).history.rounds) == SECOND + 1
    some_rounds(tmp_path, ROUNDS)
    assert [entry.state for entry in read_run(tmp_path).history.rounds][SECOND] == "aborted"
    shutil.copy(*(tmp_path / "state" / "releases" / f"{t}.safetensors" for t in (SECOND + 1, SECOND)))
    with pytest.raises(LedgerError, match="no release of it"):
        read_run(tmp_path)


def test_account_of_a_ledger_alone_says_that_nothing_was_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_rounds(tmp_path / "run", ROUNDS)
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("ledger.jsonl", "ledger.cohorts", "strategy.safetensors"):
        if (tmp_path / "run" / name).exists():
            shutil.copy(tmp_path / "run" / name, alone)
    for more in ((), ("--statement",)):
        assert hubbub("account", alone, *more) == 0
        shown = capsys.readouterr().out
        assert f"{alone}: holds a ledger alone, so that nothing could be checked against it" in shown
        assert read_run(alone).chain.head in shown
        assert hubbub("account", tmp_path / "run", *more) == 0
        assert "could be checked" not in capsys.readouterr().out
    for folder, is_alone in ((alone, True), (tmp_path / "run", False)):
        assert hubbub("account", folder, "--json") == 0
        assert json.loads(capsys.readouterr().out)["runs"][0]["ledger_alone"] is is_alone


def test_an_account_of_an_unfinished_run_says_what_it_may_still_add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_rounds(tmp_path, 4)
    promise = read_run(tmp_path).promise
    whole = promise.after(ROUNDS, promise.delta).epsilon
    assert hubbub("account", tmp_path, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["rounds_left"], row["whole_promise_epsilon"]) == (2, pytest.approx(whole, rel=1e-12))
    assert whole > row["epsilon"]
    assert hubbub("account", tmp_path) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "4 of 6 rounds, interrupted" in line
    assert "may still do 2 rounds, which add: its whole promise is epsilon " in line
    some_rounds(tmp_path, 5)
    assert hubbub("account", tmp_path) == 0
    assert "may still do 1 round, which adds: " in capsys.readouterr().out
    assert hubbub("close", tmp_path, "--early") == 0
    capsys.readouterr()
    assert hubbub("account", tmp_path) == 0
    assert "may still" not in capsys.readouterr().out


def test_a_run_that_may_go_on_is_no_earlier_run_until_it_is_finished_or_closed(tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    for folder in (early, late):
        some_rounds(folder, 4)
        with pytest.raises(LedgerError, match=f"{folder.name}: 4 of the 6 rounds.*hubbub resume.*hubbub close .* --early"):
            costs_of_ended_runs([read_run(folder)])
    end_run(early / "ledger.jsonl", early=True)
    some_rounds(late, ROUNDS)
    charges = costs_of_ended_runs([read_run(early), read_run(late)])
    assert [charge.rounds for charge in charges] == [4, 6]
