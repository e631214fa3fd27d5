"""Each notebook runs from its first cell, and shows what it is stored with.

What a cell prints is compared with what is stored, numbers to a few digits. Cells with the tag ``random`` hang on the operating
system's randomness: of those it is compared whether they show something of the same kinds. Two of them audit a run with secret
keys: the right one fails by chance with a probability of at most 10⁻⁵, the broken one passes with one of 10⁻⁶.
"""

import html
import re
from decimal import Decimal
from pathlib import Path
from runpy import run_path
from typing import Any

import nbformat
import pytest

from hubbub import Mechanism, MinSeparation, accounting
from hubbub.accounting.guarantee import unprotected
from hubbub.mechanism.strategies import Identity

ROOT = Path(__file__).parent.parent
EXECUTE = run_path(str(ROOT / "notebooks" / "execute.py"))
NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"

each = pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def texts(cell: Any) -> dict[str, str]:
    """By kind, the text of a cell's outputs; pictures are named and left out."""
    found: dict[str, str] = {}
    for number, output in enumerate(cell.get("outputs", [])):
        shown = {output.name: output.text} if output.output_type == "stream" else output.data
        for kind, value in shown.items():
            found[f"{number} {kind}"] = "" if kind.startswith("image/") else str(value)
    return found


def same(one: str, other: str) -> bool:
    """The same words, and numbers that are at most two apart in the last digit that is shown, or in the fifth."""
    if re.sub(NUMBER, "#", one) != re.sub(NUMBER, "#", other):
        return False
    return all(near(a, b) for a, b in zip(re.findall(NUMBER, one), re.findall(NUMBER, other), strict=True))


def near(one: str, other: str) -> bool:
    a, b = Decimal(one), Decimal(other)
    if "." not in one and "e" not in one:
        # Counts.
        return a == b
    last = 2 * Decimal(1).scaleb(max(int(a.as_tuple().exponent), int(b.as_tuple().exponent)))
    # Where an optimizer stops hangs on the machine's arithmetic, and what is left of a gap most of all.
    return abs(a - b) <= max(last, abs(a) / 10_000) or max(abs(a), abs(b)) < Decimal("1e-7")


@pytest.mark.slow
@each
def test_a_notebook_runs_without_a_warning_and_says_again_what_is_stored(path: Path) -> None:
    again, stored = EXECUTE["executed"](path), read(path)
    for cell, now in zip(stored.cells, again.cells, strict=True):
        before, after = texts(cell), texts(now)
        assert before.keys() == after.keys(), cell.source
        assert not any("stderr" in kind for kind in after), after
        if EXECUTE["RANDOM"] not in cell.metadata.get("tags", []):
            for kind in before:
                assert same(before[kind], after[kind]), (kind, before[kind], after[kind])


@each
def test_what_is_stored_comes_of_the_very_cells_in_order(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert notebook.metadata.hubbub.cells == EXECUTE["digest"](notebook), f"run `make notebooks`: {path.name} was edited since"
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    assert any(kind.endswith("image/png") for cell in code for kind in texts(cell))


@each
def test_a_notebook_tells_of_no_machine_is_small_and_links_to_what_there_is(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"/(work|tmp|home|root|Users|var)/|\\\\Users|site-packages", text)
    assert "shared/" not in text
    assert path.stat().st_size < 1_000_000
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def shown(value: Any) -> dict[str, str]:
    bundle: dict[str, str] = value._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html"}
    return bundle


def test_a_guarantee_is_shown_as_its_sentence_with_what_must_hold() -> None:
    guarantee = accounting.guarantee(Mechanism(Identity(8), MinSeparation(4, 2), 1.0), 1e-5)
    card = shown(guarantee)
    assert card["text/plain"] == guarantee.sentence()
    assert guarantee.sentence() in card["text/html"]
    assert all(html.escape(str(assumption)) in card["text/html"] for assumption in guarantee.assumptions)
    # The square of the sensitivity, 2, over twice the variance; √2 is rounded up.
    assert "<td" in card["text/html"]
    assert ">1</td>" in card["text/html"]
    assert ">1.415</td>" in card["text/html"]
    nothing = shown(unprotected(8, 1e-5))
    assert "no privacy guarantee" in nothing["text/plain"]
    colours = [re.findall(r"border-left:[^;]*", one["text/html"]) for one in (card, nothing)]
    assert colours[0] != colours[1]
