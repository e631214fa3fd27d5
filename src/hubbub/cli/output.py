"""Output of commands: text and tables, or one strict JSON object."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from hubbub._util import strict_json
from hubbub.errors import ConfigError

if TYPE_CHECKING:
    from hubbub.accounting.statement import PrivacyGuarantee

_LONGEST = 2000
# The width of a table of figures.
WIDE = 100
# Quotations and commands are not broken at their blanks, so that they can be copied.
_COPIED = r"(?<!\w)'[^']+'(?!\w)|(?:^|(?<=\()|(?<=: ))(?:hubbub|python|pip|cd) [^();]+"
_PARTS = re.compile(rf"( *)((?:{_COPIED}|[^ ])+)")


def console(*, stderr: bool = False) -> Console:
    """A console that prints text unchanged, without markup, emoji or highlighting."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)


def printable(text: str, longest: int | None = None) -> str:
    r"""One line with control characters escaped, cut in the middle if it is too long.

    Example:
        >>> printable("a run \x1b[2J"), printable("0123456789", longest=4)
        ('a run \\x1b[2J', '01 … 89')
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    # A message names its subject at the beginning and its fault at the end.
    return line if longest is None or len(line) <= longest else f"{line[: longest // 2]} … {line[-longest // 2 :]}"


def say(screen: Console, *lines: str, indent: int | None = None) -> None:
    """Print lines of text, each wrapped at the width of a terminal; quotations and commands in it are not broken.

    What is wrapped has an ``indent``, by default that of the line's beginning. Without a terminal nothing is wrapped.
    """
    for text in lines:
        line = printable(text, _LONGEST)
        screen.print("\n".join(_wrapped(line, screen.width, indent)) if screen.is_terminal else line)


def _wrapped(text: str, width: int, indent: int | None) -> Iterator[str]:
    words = text.lstrip()
    line = " " * (len(text) - len(words))
    hanging = " " * min(len(line) if indent is None else indent, width // 2)
    for blanks, part in _PARTS.findall(words):
        if line.strip() and cell_len(line + blanks + part) > width:
            yield line
            line = hanging + part
        else:
            line += blanks + part
    yield line


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output; numbers that are not finite are null."""
    typer.echo(json.dumps(strict_json.finite_only(value), allow_nan=False))


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Print two columns under a title."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    print_columns(table)


def grid(names: Iterable[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table of unbroken cells, each column under its name; all but the first ``left`` are aligned to the right.

    Example:
        >>> print_columns(grid(("strategy", "error"), [("tree", "4.25"), ("blt", "3.1")]))
        strategy  error
        tree       4.25
        blt         3.1
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def print_columns(table: Table, at_least: int = 0) -> None:
    """Print a table as wide as the terminal; without one, as wide as its cells, without trailing blanks.

    A terminal narrower than ``at_least`` wraps the lines of the table and cuts no digit.
    """
    screen = console()
    if screen.is_terminal:
        screen.width = max(screen.width, at_least)
        screen.print(table)
        return
    screen.width = _LONGEST
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        screen.print(line.rstrip())


def require_output(flag: str, path: Path | None, suffix: str = "") -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path is None:
        return
    if suffix and path.suffix != suffix:
        raise ConfigError(f"{flag} {path}: must end in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: is a folder; name a file in it")


def promised_words(promised: "PrivacyGuarantee", units: int) -> Iterator[str]:
    """What is said of a run before it starts: its guarantee, a delta that is too large for so many units, who is trusted."""
    from hubbub.accounting.wording import crude_delta

    yield promised.sentence()
    if promised.private and (remark := crude_delta(promised.delta, units, promised.privacy_unit)):
        yield f"WARNING: {remark}"
    if promised.setting:
        yield f"Who is trusted with what: {promised.setting}"
