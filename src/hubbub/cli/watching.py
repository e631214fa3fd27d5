"""``hubbub watch``: follow a run that another process is at work on, from its folder; nothing is written or locked in it."""

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hubbub._checks import finite
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.accounting.wording import unit_word
from hubbub.cli.output import console, printable, say
from hubbub.report.followed import Followed, Standing, worker
from hubbub.report.phases import WORDS

__all__ = ["watch"]

_LEAST_INTERVAL, _LONGEST_INTERVAL = 0.1, 3600.0
# Of a curve in letters.
_HEIGHTS, _WIDTH = "▁▂▃▄▅▆▇█", 40
# Phases that take less than this part of the time are not named.
_LEAST_SHARE = 0.01


def watch(folder: Path, interval: float) -> None:
    """Show where a run stands until it ends, or until Ctrl-C: a live view on a terminal, a line for each change elsewhere.

    Raises:
        ValueError: An interval out of range.
        RunFolderError: The folder is no run, or one that nobody begins.
    """
    if not _LEAST_INTERVAL <= finite("--interval", interval) <= _LONGEST_INTERVAL:
        raise ValueError(f"--interval = {interval:g}: must be from {_LEAST_INTERVAL:g} to {_LONGEST_INTERVAL:g} seconds")
    screen, followed = console(), Followed(folder)
    try:
        last = _live(screen, followed, interval) if screen.is_terminal else _lines(screen, followed, interval)
    except KeyboardInterrupt:
        say(screen, f"Stopped watching. Watch it again with: hubbub watch {folder}")
        return
    for line in _ending(folder, last):
        say(screen, line)


def _standings(followed: Followed, interval: float) -> Iterator[Standing | None]:
    """Where the run stands, again and again until it ends; ``None`` while it is being prepared."""
    while True:
        standing = followed.look() if followed.begun() else None
        yield standing
        if standing is not None and standing.ended:
            return
        time.sleep(interval)


def _lines(screen: Console, followed: Followed, interval: float) -> Standing:
    """A line whenever something changed."""
    told, standing = "", None
    for standing in _standings(followed, interval):
        line = _preparing(followed) if standing is None else "  ".join(_words(standing))
        if line != told:
            say(screen, line)
            told = line
    assert standing is not None  # noqa: S101 # the last of them has ended
    return standing


def _live(screen: Console, followed: Followed, interval: float) -> Standing:
    """A view that is drawn again in its place."""
    standing = None
    with Live(console=screen, auto_refresh=False) as live:
        for standing in _standings(followed, interval):
            shown: RenderableType = _preparing(followed) if standing is None else _view(followed.folder, standing)
            live.update(shown, refresh=True)
    assert standing is not None  # noqa: S101 # as above
    return standing


def _preparing(followed: Followed) -> str:
    return f"{followed.folder}: has not begun its first round; process {worker(followed.folder, sure=False)} is preparing it"


def _view(folder: Path, standing: Standing) -> RenderableType:
    """All that is known, under a bar."""
    done = standing.measured or standing.charged
    bar = Table.grid(padding=(0, 2))
    left = standing.seconds_left
    bar.add_row(
        Text(printable(folder.name or str(folder)), style="bold"),
        ProgressBar(total=max(1, standing.planned), completed=done, width=30),
        f"round {done:,} of {standing.planned:,}",
        "" if left is None else f"about {_duration(left)} left",
    )
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(standing):
        facts.add_row(Text(name, style="dim"), value)
    return Group(bar, facts)


def _facts(standing: Standing) -> Iterator[tuple[str, str]]:
    for name, spelled in (("accuracy", "{:.2%}"), ("loss", "{:.4f}")):
        value = standing.last(name)
        if value is not None:
            curve = _curve([row[name] for row in standing.rows if row.get(name) is not None])
            yield name, f"{spelled.format(value)}  {curve}"
    if standing.private:
        promised = rounded_up(standing.promised)
        yield "epsilon", f"{rounded_up(standing.epsilon)} of {promised} at delta {no_less(standing.delta)}, by the ledger"
    else:
        yield "epsilon", "∞: nothing is promised"
    if (clip_norm := standing.last("clip_norm")) is not None:
        yield "clip norm", f"{clip_norm:.3g}"
    if standing.burned:
        yield "burned", f"{standing.burned} rounds were charged and not released"
    if (each := standing.seconds_a_round) is not None:
        speed = standing.last("clients_per_second")
        fast = "" if speed is None else f", {speed:,.0f} {unit_word(standing.unit)}s/s"
        yield "speed", f"{each:.3g} s a round{fast}"
    if shares := _shares(standing.rows):
        yield "time goes to", shares


def _words(standing: Standing) -> Iterator[str]:
    """The same in one line."""
    yield f"round {standing.measured or standing.charged}/{standing.planned}"
    if (loss := standing.last("loss")) is not None:
        yield f"loss {loss:.3f}"
    if (accuracy := standing.last("accuracy")) is not None:
        yield f"accuracy {accuracy:.1%}"
    yield f"epsilon {rounded_up(standing.epsilon if standing.private else math.inf)}"
    if standing.burned:
        yield f"{standing.burned} burned"
    if (speed := standing.last("clients_per_second")) is not None:
        yield f"{speed:.0f} {unit_word(standing.unit)}s/s"
    if (left := standing.seconds_left) is not None:
        yield f"{_duration(left)} left"


def _ending(folder: Path, standing: Standing) -> Iterator[str]:
    """What the last look says of the end."""
    if shares := _shares(standing.rows):
        yield f"Time went to: {shares}."
    done = standing.charged
    if standing.closed:
        yield f"This run was closed after {done} of {standing.planned} rounds."
    elif standing.finished:
        yield f"All {standing.planned} rounds are done."
    elif (folder / "config.toml").is_file():
        yield f"No process is at work on it: {done} of {standing.planned} rounds are done. Go on with: hubbub resume {folder}"
    else:
        yield f"No process is at work on it: {done} of {standing.planned} rounds are done. Start its ServerApp again to go on."
    if (folder / "report.html").is_file():
        yield f"Report: {folder / 'report.html'}"


def _shares(rows: Any) -> str:
    """The phases that take longest, of all rounds whose metrics tell it."""
    told: list[Mapping[str, float]] = [row["phases"] for row in rows if row.get("phases")]
    sums = {words: math.fsum(phases.get(name, 0.0) for phases in told) for name, words in WORDS.items()}
    whole = math.fsum(sums.values())
    longest = sorted(sums.items(), key=lambda item: -item[1])
    return ", ".join(f"{words} {part / whole:.0%}" for words, part in longest if whole and part / whole >= _LEAST_SHARE)


def _curve(values: list[float]) -> str:
    """The values as a line of letters, each the last of as many as share it."""
    count = min(_WIDTH, len(values))
    chosen = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    low, high = min(chosen), max(chosen)
    if high == low:
        return _HEIGHTS[3] * count
    return "".join(_HEIGHTS[round((value - low) / (high - low) * (len(_HEIGHTS) - 1))] for value in chosen)


def _duration(seconds: float) -> str:
    """As h:mm:ss, or in seconds where it is less than a minute."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
