"""The notebooks as pages: text, code, and what the code gave when it was run."""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repository import ROOT, linked, page_of

FOLDER = ROOT / "notebooks"


def page(file: Path) -> str:
    """Markdown of a notebook, with its pictures in it."""
    path = file.relative_to(ROOT).as_posix()
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return (
        "\n\n".join(part for cell in cells for part in _cell(cell, path))
        + f"\n\n---\n\nThis page is `{path}`, as it was run.\n"
    )


def _cell(cell: dict[str, Any], path: str) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield linked(text, path, page_of(path))
        return
    yield f"````python\n{text}\n````"
    for output in cell.get("outputs", ()):
        yield _output(output)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="what the code above draws" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f'<pre class="output">{html.escape(text, quote=False).rstrip()}</pre>' if text.strip() else ""
