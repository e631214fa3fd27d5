"""Kills starts of a run with SIGKILL at random moments, or at a named one, until the run is done, and has it judged.

A start is a fork of a process with one thread that has imported and done everything before. Where the process of a test has
more threads, a server is asked: this file as a program, which works off one line of JSON after another until its input ends.
Each start is finite, and ends by an alarm if it hangs, so that none outlives a test that was killed itself.
"""

import itertools
import json
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

# Seconds in which a start must end.
_LONGEST = 120
# Seconds of processor time in which a run must be open again.
SLOWEST_START = 2.0


@dataclass
class Figures:
    """What was killed, and what was found.

    ``unpublished`` are releases that were committed by a start that was killed before they left; ``slowest_start`` is in
    seconds of processor time.
    """

    kills: int = 0
    runs: int = 0
    rounds: int = 0
    committed: int = 0
    aborted: int = 0
    unpublished: int = 0
    slowest_start: float = 0.0

    def __add__(self, other: "Figures") -> "Figures":
        added = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return Figures(**{**added, "slowest_start": max(self.slowest_start, other.slowest_start)})


@dataclass(frozen=True)
class Job:
    """What is to be done: so many kills at least, over so many runs at least; or one at a named moment.

    A moment is a method, by its full name, after the word before or after: the first start dies there, when the method is
    called for the second time.
    """

    strategy: str
    rounds: int
    folder: str
    kills: int = 0
    runs: int = 0
    moment: str = ""


@dataclass
class Run:
    """A run that is killed: its folder, and beside it what the world saw."""

    job: Job
    folder: Path
    starts: int = 0
    kills: int = 0
    events: list[Any] = field(default_factory=list)

    def start(self, wait: float | None = None, moment: str = "") -> bool:
        """One start in a process of its own; ``True`` where it came to its end.

        It is killed after so many seconds; at every second start they count from when the run is open again.
        """
        self.starts += 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            os._exit(self._work(moment, writing))
        os.close(writing)
        if wait is not None and self.starts % 2:
            os.read(reading, 1)
        if not _ended(reading, wait):
            os.kill(child, signal.SIGKILL)
        os.close(reading)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        before, self.events = len(self.events), list(_read(self._seen))
        if code not in (0, -signal.SIGKILL):
            error = self.folder.with_name("error")
            raise AssertionError(f"a start ended with {code}: {error.read_text() if error.exists() else 'it hung'}")
        if len(self.events) < before:
            raise AssertionError("what was seen was forgotten")
        self.kills += code != 0
        return code == 0

    @property
    def _seen(self) -> Path:
        return self.folder.with_name("seen")

    def _work(self, moment: str, ready: int) -> int:
        """In the process of the start: all rounds that are left; says when the run is open."""
        from witness import Finished, Ready, go

        signal.alarm(_LONGEST)
        seen = os.open(self._seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def note(event: Any) -> None:
            os.write(seen, pickle.dumps(event))
            if isinstance(event, Ready):
                os.write(ready, b"r")

        try:
            with _dying(moment):
                model = go(_case(self.job), None, self.folder, self.starts, note)
            note(Finished(tuple(map(float, model))))
        except BaseException:  # noqa: BLE001 # the parent says so
            self.folder.with_name("error").write_text(traceback.format_exc())
            return 1
        return 0

    def judged(self) -> Figures:
        """Hold what the world saw against the folder."""
        from judge import judge, require
        from witness import Published, Ready, records

        judge(_case(self.job), self.folder, self.events, self.events[-1].model)
        kinds = Counter(body["kind"] for body in records(self.folder))
        published = {event.round_index for event in self.events if isinstance(event, Published)}
        slowest = max(event.seconds for event in self.events if isinstance(event, Ready))
        require(slowest < SLOWEST_START, f"a start took {slowest} seconds of processor time")
        require(kinds["begin"] == kinds["commit"] + kinds["abort"], "a round was left open")
        require(kinds["abort"] <= self.kills, "a kill costs at most the round that was under way")
        unpublished = kinds["commit"] - len(published)
        return Figures(self.kills, 1, kinds["begin"], kinds["commit"], kinds["abort"], unpublished, slowest)


def _case(job: Job) -> Any:
    # Only who forks needs what runs are made of.
    from witness import Case

    return Case(job.strategy, job.rounds)


def _ended(reading: int, wait: float | None) -> bool:
    """Whether a start, whose end of a pipe is closed when it ends, does so within some seconds."""
    deadline = None if wait is None else time.monotonic() + wait
    while select.select([reading], [], [], None if deadline is None else max(0.0, deadline - time.monotonic()))[0]:
        if not os.read(reading, 1):
            return True
    return False


def _read(path: Path) -> Iterator[Any]:
    """What was seen; the rest of what a kill has cut in two is taken away."""
    if path.exists():
        with path.open("rb") as file:
            while True:
                place = file.tell()
                try:
                    yield pickle.load(file)  # noqa: S301 # our own
                except (EOFError, pickle.UnpicklingError):
                    os.truncate(path, place)
                    return


@contextmanager
def _dying(moment: str) -> Iterator[None]:
    """The process dies at a named moment of the second round."""
    if not moment:
        yield
        return
    when, place = moment.split()
    module, kind, name = place.rsplit(".", 2)
    owner = getattr(import_module(module), kind)
    real, calls = getattr(owner, name), itertools.count(1)

    def deadly(*arguments: Any, **settings: Any) -> Any:
        last = next(calls) == 2
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*arguments, **settings)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, deadly)
        yield


def threads() -> int:
    """How many this process has, those of libraries counted."""
    return len(list(Path("/proc/self/task").iterdir()))


def work_off(job: Job) -> Figures:
    """Do a job in this process, which must have one thread.

    Raises:
        Violation: A promise was broken.
        AssertionError: A start failed.
    """
    if threads() > 1:
        raise AssertionError("a process with several threads is not to be forked")
    from witness import go

    moments, root, case = random.Random(f"{job}"), Path(job.folder), _case(job)  # noqa: S311 # moments of a test
    whole = 0.0
    # What a first run imports and remembers is there before the first fork; the second shows how long one takes.
    for number in range(1 if job.moment else 2):
        (root / f"whole-{number}").mkdir(parents=True)
        begun = time.monotonic()
        go(case, None, root / f"whole-{number}" / "run", 0, [].append)
        whole = time.monotonic() - begun
    # A kill for every other round, and some rounds between two of them.
    most, apart, found = max(3, case.way.rounds // 2), whole * min(0.75, 4 / case.way.rounds), Figures()
    while found.kills < job.kills or found.runs < job.runs:
        folder = root / f"{found.runs}"
        folder.mkdir()
        run = Run(job, folder / "run")
        if job.moment and run.start(moment=job.moment):
            raise AssertionError(f"nobody came by {job.moment}")
        while not run.start(moments.uniform(0.0, apart) if run.starts < most and not job.moment else None):
            pass
        found += run.judged()
    return found


class Killer:
    """Does jobs, by a server where this process has several threads; a context manager."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Killer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server:
            self._server.communicate()

    def done(self, job: Job) -> Figures:
        """What was found.

        Raises:
            AssertionError: A promise was broken, or a start failed.
        """
        if threads() == 1:
            return work_off(job)
        self._server = self._server or _served()
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(asdict(job)) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        assert "error" not in answer, answer["error"]
        return Figures(**answer)


def _served() -> subprocess.Popen[str]:
    import hubbub

    # The package that this process tests, which may be a copy.
    paths = [str(Path(hubbub.__file__).parents[1]), *sys.path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command, pipe = [sys.executable, __file__], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)


def serve(answer: Callable[[str], None]) -> None:
    """Work off the jobs on standard input."""
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            found = asdict(work_off(Job(**json.loads(line))))
        except Exception:  # noqa: BLE001 # whoever asked says so
            found = {"error": traceback.format_exc()}
        answer(json.dumps(found))


if __name__ == "__main__":
    # What libraries print belongs to nobody.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(text: str) -> None:
        told.write(text + "\n")
        told.flush()

    serve(answer)
