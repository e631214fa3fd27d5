"""A process that dies at a step: before or after a call that changes its folder, or a function between which a round may stop.

What happened is kept in a file that outlives it.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# What a process does to its folder.
_CALLS = ("replace", "fsync", "write", "unlink", "open", "ftruncate", "mkdir")
# Takes who watches, a function, what it was given and what it answered.
See = Callable[["Dying", Callable[..., Any], Sequence[Any], Any], None]


class Dying:
    """Watches processes, and lets them die.

    Args:
        path: Where events are kept.
        functions: Those between which a round may stop, by their class.
        see: Called after each of them.
    """

    def __init__(self, path: Path, functions: Mapping[type, Sequence[str]], see: See) -> None:
        self.path, self.step, self.deadly = path, 0, 0
        # The step right after each of the functions, of its first call.
        self.after: dict[str, int] = {}
        self._functions, self._see = functions, see
        self._calls = {name: getattr(os, name) for name in _CALLS}

    def tell(self, what: str, *event: Any) -> None:
        descriptor = self._calls["open"](self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calls["write"](descriptor, json.dumps([what, *event]).encode() + b"\n")
        os.close(descriptor)

    def events(self) -> list[tuple[Any, ...]]:
        """What was told, in order: what it was first."""
        return [tuple(json.loads(line)) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events() if event[0] == what]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count steps, and die at the deadly one."""
        with pytest.MonkeyPatch.context() as patch:
            for name, real in self._calls.items():
                patch.setattr(os, name, self._between(real))
            for kind, names in self._functions.items():
                for name in names:
                    patch.setattr(kind, name, self._between(getattr(kind, name)))
            yield

    def dies(self, step: int, work: Callable[[], object]) -> None:
        """Do the work in a process of its own, which dies at a step; what goes wrong in it is told as ``error``."""
        child = os.fork()
        if child == 0:
            try:
                self.step, self.deadly = 0, step
                work()
            except BaseException as error:  # noqa: BLE001 # the parent reads of it
                self.tell("error", repr(error)[:300])
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    def _between(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **settings: Any) -> Any:
            self._tick()
            answer = real(*arguments, **settings)
            self._see(self, real, arguments, answer)
            self._tick()
            self.after.setdefault(real.__qualname__, self.step)
            return answer

        return watched

    def _tick(self) -> None:
        self.step += 1
        if self.step == self.deadly:
            os._exit(9)
