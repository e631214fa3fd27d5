"""What commands print: a table for people, or one strict JSON object for programs."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from hubbub._util import strict_json

__all__ = ["console", "print_columns", "print_json", "print_table", "print_whole", "printable", "say"]

_LONGEST = 2000
# What somebody copies is not parted at its blanks: what stands in quotes, and a command from its first word on.
_COPIED = r"(?<!\w)'[^']+'(?!\w)|(?:^|(?<=\()|(?<=: ))(?:hubbub|python|pip|cd) [^();]+"
_PARTS = re.compile(rf"( *)((?:{_COPIED}|[^ ])+)")


def console(*, stderr: bool = False) -> Console:
    """A console for text as it is: a name in brackets is a name, not a style, and :100: is no picture."""
    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)


def printable(text: str, longest: int | None = None) -> str:
    r"""One line that a terminal shows and does not obey, whatever a name in it holds.

    Example:
        >>> printable("a run \x1b[2J"), printable("0123456789", longest=4)
        ('a run \\x1b[2J', '01 … 89')
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    # What is wrong stands at the end, what it is about at the beginning.
    return line if longest is None or len(line) <= longest else f"{line[: longest // 2]} … {line[-longest // 2 :]}"


def say(screen: Console, text: str = "", *, indent: int | None = None) -> None:
    """Print a line of text; on a terminal that is too narrow for it, lines that end between words.

    Args:
        screen: Where to; what is no terminal gets one line.
        text: Quotations and commands in it stay whole, however long, so that they can be copied.
        indent: Of the lines after the first; by default as of the first.
    """
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
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(strict_json.finite_only(value), allow_nan=False) + "\n")


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Two columns under a title."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    print_columns(table)


def print_columns(table: Table) -> None:
    """A table as wide as the terminal; where there is none, as wide as its cells, and no line ends in blanks."""
    screen = console()
    if screen.is_terminal:
        screen.print(table)
        return
    screen.width = _LONGEST
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        screen.print(line.rstrip())


def print_whole(table: Table, width: int) -> None:
    """A table of at least that width: where a terminal is narrower its lines wrap, and no digit is cut."""
    screen = console()
    screen.width = max(screen.width, width)
    screen.print(table)
