"""Notebook cards: one sentence, with a few numbers below it."""

from collections.abc import Sequence
from html import escape

# Visible on light and dark pages.
_EDGE = {True: "#1b6ca8", False: "#b5542b"}
_CELL = "text-align:left;padding:1px 14px 1px 0;background:none"


def bundle(sentence: str, rows: Sequence[tuple[str, str]], further: Sequence[str] = (), *, good: bool = True) -> dict[str, str]:
    """The sentence as text, and as HTML a card with rows of names and values, and sentences that can be folded out.

    Of a ``good`` card the edge is blue rather than orange.
    """
    table = "".join(
        f'<tr style="background:none"><td style="{_CELL};opacity:0.7">{escape(name)}</td>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    folded = "".join(f"<li>{escape(line)}</li>" for line in further)
    html = (
        f'<div style="border-left:4px solid {_EDGE[good]};padding:2px 0 2px 14px;max-width:52em">'
        f"<p><b>{escape(sentence)}</b></p>"
        + (f'<table style="font-size:92%;margin-left:0;border:0"><tbody>{table}</tbody></table>' if rows else "")
        + (f"<details><summary>what must hold</summary><ul>{folded}</ul></details>" if folded else "")
        + "</div>"
    )
    return {"text/plain": sentence, "text/html": html}
