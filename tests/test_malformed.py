"""Whatever is malformed is refused in one line that names it, and nothing that was there before changes."""

import contextlib
import functools
import io
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

import malformed
from conftest import at_work, raising
from hubbub.cli import main
from hubbub.errors import HubbubError
from hubbub.training import ReleasePath, RunStore, rounds
from malformed import CONFIG, EVERY, FAMILIES, Accepted, Call, Case, Command, Line, Run, Workplace
from refusals import little_memory

# A command that waits for something that does not come is ended after this long.
PATIENCE = 15.0
# Beyond what the process holds already: an endless file or a bomb must not fill the memory of the machine.
MEMORY = 2**30
LONGEST_LINE = 2000
# Of each family, spread over all of it, in every run of the tests; `make stress` tries them all.
PART = 8
WENT_ON = "went on to train"
Faults = Callable[[list[Case]], str]


class Hung(BaseException):
    """A command did not come back."""


@dataclass(frozen=True)
class Outcome:
    status: int | str | None
    output: str
    error: str


def executed(command: Command) -> Outcome:
    """Run a command in this process, with a limit to its time and memory; a call as if it were one."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    status: int | str | None = "came back"
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), limited():
        try:
            if isinstance(command, Call):
                called(command)
            else:
                main(list(command))
        except SystemExit as end:
            status = end.code
        except Accepted:
            status = WENT_ON
        except Hung:
            status = "hung"
        except Exception as error:  # noqa: BLE001 # what escapes is a traceback
            status = f"traceback: {type(error).__name__}: {error}"
    output, error = (stream.buffer.getvalue().decode() for stream in streams)
    return Outcome(status, output, error)


def called(call: Call) -> None:
    """What a command would make of what a function refuses."""
    try:
        call.do()
    except (HubbubError, ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"hubbub: {error}\n")
        raise SystemExit(2) from error


@contextlib.contextmanager
def limited() -> Iterator[None]:
    with little_memory(MEMORY):
        before = signal.signal(signal.SIGALRM, raising(Hung))
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _ugly(outcome: Outcome) -> Iterator[str]:
    """What nobody should find on a terminal."""
    if "Traceback" in outcome.error:
        yield "a traceback"
    for line in (*outcome.error.split("\n"), *outcome.output.split("\n")):
        if not line.isprintable():
            yield f"a line that steers the terminal: {line[:200]!r}"
        if len(line) > LONGEST_LINE:
            yield f"a line of {len(line)} characters"


def complaints(case: Case, command: Command, outcome: Outcome) -> Iterator[str]:
    """What is wrong with how a command took a case."""
    failed = [line for line in outcome.output.split("\n") if line.startswith("FAILS")]
    if not isinstance(command, Call) and command[0] == "verify" and outcome.status == 1 and not outcome.error:
        said = "\n".join(failed)
        if not failed:
            yield "status 1 without a check that FAILS"
    elif outcome.status == 2:
        said = outcome.error
        if not said.startswith("hubbub: ") or said.count("\n") != 1 or not said.endswith("\n"):
            yield "not one line that begins with hubbub:"
    else:
        yield f"status {outcome.status}"
        return
    yield from _ugly(outcome)
    # Whoever need not read what is wrong names the file.
    for word in case.words[: 1 if command in case.others else None]:
        options = (word,) if isinstance(word, str) else word
        if not any(option in said for option in options):
            yield f"does not name {' or '.join(options)[:200]}: {said.strip()[:300]!r}"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with a config and the run that was interrupted twice."""
    place = tmp_path_factory.mktemp("malformed")
    with pytest.MonkeyPatch.context() as monkeypatch, at_work(place, monkeypatch):
        # The same command line for thousands of cases: made once, they take half the time.
        monkeypatch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        Path("plan.toml").write_text(CONFIG)
        interrupted_twice()
        # Each command's own modules are loaded once, before memory is limited.
        for command in (("verify", "run"), ("ledger", "run"), (*malformed.NOISY,), (*malformed.CALIBRATE,)):
            assert executed(command).status == 0
        yield place


def interrupted_twice() -> None:
    """A run whose round 4 aborted, and that Ctrl-C stopped after round 7."""
    save, begin = RunStore.save_release, ReleasePath.begin

    def stop_in_round_4(self: RunStore, round_index: int, *more: object) -> bytes:
        if round_index == 4:
            raise KeyboardInterrupt
        return save(self, round_index, *more)

    def stop_before_round_8(self: ReleasePath, *more: object) -> object:
        if self.next_round == 8:
            raise KeyboardInterrupt
        return begin(self, *more)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(rounds, "CHECKPOINT_EVERY", 3)
        monkeypatch.setattr(Line, "may_learn", True)
        with monkeypatch.context() as first:
            first.setattr(RunStore, "save_release", stop_in_round_4)
            started(("train", "plan.toml", "--out", "run", "--allow-import"))
        with monkeypatch.context() as second:
            second.setattr(ReleasePath, "begin", stop_before_round_8)
            started(malformed.RESUME)


def started(command: Command) -> None:
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stop:
        main(list(command))
    assert stop.value.code == 130


@pytest.fixture(scope="module")
def run(workplace: Path) -> Run:
    files = [path for path in sorted((workplace / "run").rglob("*")) if path.is_file()]
    found = Run({str(path.relative_to(workplace / "run")): path.read_bytes() for path in files})
    kinds = [record["kind"] for record in found.records()]
    assert kinds == ["promise", "epoch", *["begin", "commit"] * 4, "begin", "abort", "epoch", *["begin", "commit"] * 3]
    assert {"strategy.safetensors", "state/checkpoint-6.safetensors", "state/noise.sealed"} <= set(found.files)
    return found


def tried(case: Case, command: Command, place: Workplace, before: Outcome | None = None) -> list[str]:
    """What is wrong with how a command takes a case; it may also do what it did ``before``."""
    place.restore()
    case.damage()
    there = place.stamp()
    outcome = executed(command)
    wrong = list(complaints(case, command, outcome))
    if before and (outcome.status, outcome.output) == (before.status, before.output):
        return []
    after = place.stamp()
    changed = sorted(name for name in after.keys() | there.keys() if after.get(name) != there.get(name))
    if changed and not (wrong and wrong[0].startswith("status")):
        wrong.append(f"changed {', '.join(str(name) for name in changed)[-200:]}")
    return wrong


@pytest.fixture(scope="module")
def families(run: Run) -> dict[str, list[Case]]:
    return {family: list(cases(run)) for family, cases in FAMILIES.items()}


@pytest.fixture(scope="module")
def place(workplace: Path, run: Run) -> Workplace:
    return Workplace(workplace)


@pytest.fixture(scope="module")
def faults(place: Workplace) -> Faults:
    """What is wrong with how cases are taken, a line each; nothing where all is well."""
    whole = {}
    for command in EVERY:
        place.restore()
        whole[command] = executed(command)
        assert whole[command].status in (0, WENT_ON), whole[command]

    def found(cases: list[Case]) -> str:
        lines = []
        for case in cases:
            for command in (*case.commands, *case.others):
                what = command.name if isinstance(command, Call) else command[0]
                before = whole[command] if command in case.others else None
                lines += [f"{case.name!r}, {what}: {complaint}" for complaint in tried(case, command, place, before)]
        return "\n".join(lines)

    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("most", [PART, pytest.param(10**6, marks=pytest.mark.slow)], ids=["some", "all"])
def test_whatever_is_malformed_is_refused_in_one_line_that_names_it(
    faults: Faults, families: dict[str, list[Case]], family: str, most: int
) -> None:
    cases = families[family]
    assert not faults([cases[i * len(cases) // most] for i in range(most)] if len(cases) > most else cases)


def test_what_the_malformed_files_are_made_from_is_taken(place: Workplace, run: Run) -> None:
    for case in malformed.whole(run):
        for command in case.commands:
            place.restore()
            case.damage()
            assert executed(command).status in (0, WENT_ON), (case.name, command)


def test_thousands_of_malformed_files_and_values_are_tried(families: dict[str, list[Case]]) -> None:
    names = {family: [case.name for case in cases] for family, cases in families.items()}
    twice = {family: sorted({name for name in found if found.count(name) > 1}) for family, found in names.items()}
    assert not any(twice.values()), twice
    assert len(names) == 26
    assert sum(map(len, names.values())) >= 8400
