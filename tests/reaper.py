"""Ends the processes of a test, and theirs, by a mark in their environment, even where the test was killed itself.

A child inherits the mark whatever session or parent it gives itself, so that nobody escapes. The reaper waits in a process of
its own for the end of its standard input, which the test holds open: it is closed when the test says so and when it is gone.
"""

import os
import re
import select
import signal
import sys
import time
from pathlib import Path

# Seconds between two looks: a process that is born during one is seen in the next.
_PAUSE = 0.05


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """The processes, zombies left out, that have ``mark``, a ``NAME=value``, in their environment."""
    if not re.fullmatch(r"\w+=[\w/-]{20,}", mark):
        raise ValueError(f"mark = {mark!r}: must be a name and a value that nobody else has")
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                # It ended meanwhile, or is another user's.
                continue
            if mark.encode() in variables:
                found.append(int(folder.name))
    return found


def end(mark: str) -> None:
    """Kill whoever has the mark, and whom they started meanwhile."""
    while pids := marked(mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE)


if __name__ == "__main__":
    select.select([sys.stdin], [], [], float(sys.argv[2]))
    end(sys.argv[1])
