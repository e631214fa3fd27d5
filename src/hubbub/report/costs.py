"""What a run took: seconds by phase, encryption, and what was sent."""

from collections.abc import Iterator
from statistics import median

from hubbub.report.phases import WORDS, phase_seconds
from hubbub.report.told import RunTold

__all__ = ["costs"]

_SECONDS = {
    "seconds": "a whole round",
    "encrypt_seconds": "encrypt, all clients one after the other",
    "aggregate_seconds": "add what is encrypted, server",
    "decrypt_seconds": "open the sum, holders of the key",
}


def costs(run: RunTold) -> Iterator[tuple[str, str, str, str]]:
    """Rows of a table: what it is, the median of a round, the largest, and all rounds together; a dash where none is known."""
    for key, words in _SECONDS.items():
        values = [row[key] for row in run.rows if row.get(key) is not None]
        if values:
            yield words, _time(median(values)), _time(max(values)), _time(sum(values))
    phases = [row["phases"] for row in run.rows if row.get("phases")]
    for name in phase_seconds(run):
        values = [each.get(name, 0.0) for each in phases]
        yield f"– {WORDS[name]}", _time(median(values)), _time(max(values)), _time(sum(values))
    yield from _sent(run)


def _sent(run: RunTold) -> Iterator[tuple[str, str, str, str]]:
    """The bytes that clients send encrypted: one of them, and as many as were asked."""
    rows = [row for row in run.rows if row.get("upload_bytes") is not None]
    if not rows:
        return
    sizes = [row["upload_bytes"] for row in rows]
    yield "one client sends", _size(median(sizes)), _size(max(sizes)), "–"
    together = [row["upload_bytes"] * (row["clients"] or 0) for row in rows]
    yield "all clients send", _size(median(together)), _size(max(together)), _size(sum(together))


def _time(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:,.3g} s" if seconds >= 0.1 else f"{1000 * seconds:,.3g} ms"


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e7 else f"{count / 1000:,.0f} kB"
