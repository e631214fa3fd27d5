"""Names that a terminal, a markup or a file system would take for something else."""

import json
from collections.abc import Iterator
from pathlib import Path

from malformed.base import CONFIG, NOISY, PLAN, Case, Run
from malformed.damages import Damage, holding, nothing

# What a terminal, a markup or a format would take for something else, and what of it any message can show.
NASTY = {
    "\x1b[31mred": "red",
    "\x1b]0;title\x07": "title",
    "[/red]": "/red]",
    "[bold]loud[/bold]": "loud",
    "[link=x]y": "y",
    "two\nlines": "lines",
    "tab\there": "here",
    "bell\a": "bell",
    "back\b\b\b\bspace": "space",
    "re\rturn": "turn",
    "\x9b31mred": "red",
    "\u202egnp.exe": "gnp",
    "zero\u200bwidth": "width",
    "line\u2028end": "end",
    "%s{}{0}%n": "%n",
    "half\udcff": "half",
    "x" * 250: "xxx",
}
# What no file can be called.
IMPOSSIBLE = {"nul\0byte": "byte", "y" * 300: "yyy", "z/" * 3000: "z/", "": ""}


def names(run: Run) -> Iterator[Case]:
    for nasty, word in (NASTY | IMPOSSIBLE).items():
        shown_as = repr(nasty[:20])
        if nasty:
            commands = (("plan", nasty), ("train", nasty))
            yield Case(f"config {shown_as}", commands, (word,), nothing)
            commands = tuple((command, nasty) for command in ("resume", "verify", "ledger", "close"))
            yield Case(f"run {shown_as}", commands, (word,), nothing)
            data = ("plan", "config.toml", "--measure", "--set", "data.name=mnist", "--set", f"data.path={nasty}")
            matrix = (*NOISY, "--mechanism", nasty)
            named = (*NOISY, "--strategy", "dense", "--matrix", nasty)
            commands = (data, matrix, named) if "\n" not in nasty and "\r" not in nasty else (matrix, named)
            yield Case(f"data and matrix {shown_as}", commands, (word,), holding("config.toml", CONFIG.encode()))
        yield Case(f"mechanism {shown_as}", ((*NOISY, "--mechanism", nasty),), (word,) if nasty else ("--mechanism",), nothing)
        yield Case(f"strategy {shown_as}", ((*NOISY, "--strategy", nasty),), ("strategy", word), nothing)
        yield Case(f"command {shown_as}", ((nasty, "x"),), (word,) if nasty else (), nothing)
        yield Case(f"--set {shown_as}", ((*PLAN, "--set", nasty),), ("--set", word), nothing)
        key = json.dumps(nasty.replace("\udcff", "\ufffe"))
        damage = holding("bad.toml", f"[training]\n{key} = 1\n".encode())
        yield Case(f"key {shown_as}", (("plan", "bad.toml"),), ("training", word), damage)
        damage = holding("bad.toml", f"[{key}]\n".encode())
        yield Case(f"section {shown_as}", (("plan", "bad.toml"),), (word,), damage)
    for path in ("../nowhere", "run/../nowhere", "/proc/self/nowhere", "~nobody/nowhere", "plan.toml/nowhere", "/", "."):
        commands = tuple((command, path) for command in ("resume", "verify", "ledger", "close"))
        yield Case(f"no run at {path}", commands, (path, "is no run"), nothing)
    for nasty, word in NASTY.items():
        shown_as = repr(nasty[:20])
        train = ("train", "plan.toml", "--allow-import", "--out", nasty)
        yield Case(f"a file called {shown_as}", (train,), (word, "exists"), holding(nasty, b"years of work"))
        commands = (("verify", nasty), ("resume", nasty, "--allow-import"), ("ledger", nasty))
        moved = _moved(nasty, "ledger.jsonl", b"{}\n")
        yield Case(f"a run called {shown_as} with a bad ledger", commands, ("ledger.jsonl", word), moved)
        resume = (("resume", nasty, "--allow-import"),)
        moved = _moved(nasty, "state/checkpoint.json", b"[]")
        yield Case(f"a run called {shown_as} with a bad checkpoint", resume, ("checkpoint.json", word), moved)
        verify = (("verify", nasty),)
        moved = _moved(nasty, "guarantee.json", b"[]")
        yield Case(f"a run called {shown_as} with a bad statement", verify, ("guarantee.json",), moved)
    for nasty, word in IMPOSSIBLE.items():
        if nasty:
            train = ("train", "plan.toml", "--allow-import", "--out", nasty)
            yield Case(f"--out {nasty[:20]!r}", (train,), (word,), nothing)


def _moved(name: str, file: str, content: bytes) -> Damage:
    def damage() -> None:
        Path(name).parent.mkdir(exist_ok=True)
        Path("run").rename(name)
        Path(name, file).write_bytes(content)

    return damage
