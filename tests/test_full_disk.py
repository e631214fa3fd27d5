"""A disk that is full, broken or read-only: the run stops and says where, releases nothing more, and can go on later."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hubbub.errors import HubbubError
from hubbub.training import RunStore
from judge import judged, records, require_published
from recorded_runs import SMALL, invoke
from simulated_disk import NOTHING, Disk, Image, put
from witness import Case, Met, Started, go

CASE = Case("BandedToeplitz", 8)
ROUNDS = 5
# What takes a path names it when it fails; what takes a descriptor cannot.
WITH_PATH = ("open", "replace", "unlink", "mkdir")


def failing(number: int, code: int, *, once: bool) -> Callable[[str, Path], None]:
    """Call ``number`` fails, and unless ``once`` all after it."""
    calls = itertools.count()

    def before(call: str, path: Path) -> None:
        at = next(calls)
        if at == number or (at > number and not once):
            raise OSError(code, os.strerror(code), *([str(path)] if call in WITH_PATH else []))

    return before


def calls_of_a_run(root: Path) -> list[str]:
    root.mkdir()
    disk, calls = Disk(root), []
    disk.before = lambda call, path: calls.append(call)
    go(CASE, disk, root / "run", 1, disk.mark, ROUNDS)
    return calls


def stopped(disk: Disk, root: Path, events: list[Any], rounds: int = ROUNDS) -> str:
    """What the run says when it stops; empty where it does not."""

    def note(event: Any) -> None:
        events.append(event)
        disk.mark(event)

    try:
        go(CASE, disk, root / "run", 1, note, rounds)
    except (HubbubError, OSError) as error:
        return str(error)
    return ""


def require_whole(disk: Disk, root: Path, events: Sequence[Any]) -> None:
    """What met noise is charged and what left is kept, both durably; and a healthy disk lets the run go on."""
    *_, (image, _) = Image.along(disk.log)
    durable = root.with_name(f"{root.name} durable")
    put(image.left(NOTHING), durable)
    begun = [body["round"] for body in records(durable / "run") if body["kind"] == "begin"]
    assert all(event.round_index in begun for event in events if isinstance(event, Met)), "noise without a charge"
    require_published(CASE, durable / "run", events)
    shutil.rmtree(durable)
    assert judged(CASE, root, "run", events, seed=2)


@pytest.mark.parametrize("once", [True, False], ids=["once", "from then on"])
@pytest.mark.parametrize(
    ("code", "every"),
    [
        pytest.param(code, every, marks=pytest.mark.slow if every == 1 else (), id=f"{errno.errorcode[code]}, each {every}.")
        for code in (errno.ENOSPC, errno.EIO, errno.EROFS)
        for every in (1, 17)
    ],
)
def test_cra_11_a_run_whose_disk_fails_names_the_file_and_can_go_on(code: int, every: int, once: bool, tmp_path: Path) -> None:
    calls = calls_of_a_run(tmp_path / "whole")
    for number in range(0, len(calls), every):
        root = tmp_path / f"{number}"
        root.mkdir()
        disk, events = Disk(root), []
        disk.before = failing(number, code, once=once)
        message = stopped(disk, root, events)
        if not message:
            # What cannot be removed is no harm.
            assert calls[number] == "unlink"
            continue
        assert str(root) in message, f"call {number}, {calls[number]}: {message!r} does not say where"
        require_whole(disk, root, events)


@pytest.mark.parametrize("returns_zero", [True, False], ids=["a write of nothing", "an error"])
@pytest.mark.parametrize("every", [613, pytest.param(37, marks=pytest.mark.slow)])
def test_cra_11_a_write_that_is_cut_leaves_the_ledger_whole(every: int, returns_zero: bool, tmp_path: Path) -> None:
    calls_of_a_run(tmp_path / "whole")
    needed = sum(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file() and path.name != "lock")
    for number, room in enumerate(range(0, needed, every)):
        root = tmp_path / f"{number}"
        root.mkdir()
        disk, events = Disk(root), []
        disk.room, disk.returns_zero = room, returns_zero
        message = stopped(disk, root, events)
        assert str(root) in message, f"{room} bytes: {message!r} does not say where"
        ledger = root / "run/ledger.jsonl"
        assert not ledger.exists() or ledger.read_bytes().endswith(b'"}\n')
        require_whole(disk, root, events)


def test_cra_11_a_run_that_stops_often_aborts_at_most_one_round_each_time(tmp_path: Path) -> None:
    root, events = tmp_path / "root", []
    root.mkdir()
    for number in itertools.count(12):
        disk = Disk(root)
        disk.before = failing(number, errno.ENOSPC, once=False)
        if not stopped(disk, root, events, CASE.rounds):
            break
    starts = sum(isinstance(event, Started) for event in events)
    aborted = sum(body["kind"] == "abort" for body in records(root / "run"))
    assert 1 <= aborted < starts, (aborted, starts)
    require_whole(disk, root, events)


def test_cra_11_the_command_line_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "releases/0")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "save_release", full)
        (tmp_path / "run.toml").write_text(SMALL)
        said = invoke("train", tmp_path / "run.toml", "--out", tmp_path / "run", status=2)
    assert f"Stopped after 0 of 4 rounds. Resume with: hubbub resume {tmp_path / 'run'}\n" in said
    assert "give the command again" not in said
    invoke("resume", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 200, 4000])
def test_cra_11_the_command_line_says_in_one_line_that_a_file_cannot_grow(limit: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(limit), "train", str(EXAMPLE), "--set", "training.rounds=3", "--out"]
    done = subprocess.run([*command, str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done
    assert done.stderr.startswith("hubbub: ")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "run") in done.stderr


EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.toml"
LIMITED = """
import resource, sys
from hubbub.cli import main
import hubbub.cli.training, sklearn.datasets
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""
