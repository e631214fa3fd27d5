"""The catalogue of faults and attacks, the tests that try them, and the mutants by which these tests show their teeth."""

import ast
import importlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from catalogue.case import FAMILIES, Case
from mutants import ALL, Mutant

__all__ = ["CASES", "PAGE", "Case", "ids_of", "mutants_of", "named_tests", "page"]

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "reliability.md"
CASES: list[Case] = [case for family in FAMILIES for case in importlib.import_module(f"catalogue.{family.lower()}").CASES]
BEGIN, END = "<!-- cases -->", "<!-- end of cases -->"
_NAMED = re.compile(rf"_({'|'.join(FAMILIES).lower()})_(\d+)(?=_|$)")


def ids_of(name: str) -> list[str]:
    """The cases that a test is named by: those that stand at the beginning of its name."""
    found, at = list[str](), len("test")
    while name.startswith("test_") and (match := _NAMED.match(name, at)):
        found.append(f"{match[1].upper()}-{match[2]}")
        at = match.end()
    return found


@cache
def named_tests() -> dict[str, list[str]]:
    """For each case its tests, ``test_file.py::test_name``."""
    found = defaultdict[str, list[str]](list)
    for file in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for case in ids_of(node.name):
                    found[case].append(f"{file.name}::{node.name}")
    return dict(found)


@cache
def mutants_of() -> dict[str, list[Mutant]]:
    """For each case the mutants that its tests notice."""
    found = defaultdict[str, list[Mutant]](list)
    for mutant in ALL:
        for case in ids_of(mutant.test.partition("::")[2].partition("[")[0]):
            found[case].append(mutant)
    return dict(found)


def page() -> str:
    """The page with its tables as they should be."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(_tables()) + END + after


def _tables() -> list[str]:
    lines = []
    for family, title in FAMILIES.items():
        lines += [
            f"\n### {family}: {title.lower()}\n",
            "| | what happens | what comes of it | tests | mutants |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(case) for case in CASES if case.id.startswith(family)]
    return [*lines, ""]


def _row(case: Case) -> str:
    tests = "<br>".join(f"`{test}`" for test in named_tests().get(case.id, [])) or case.absent
    mutants = "<br>".join(mutant.what for mutant in mutants_of().get(case.id, []))
    cells = (f"**{case.id}** {case.severity}", _cell(case.fault), _cell(case.expected), tests, _cell(mutants))
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
