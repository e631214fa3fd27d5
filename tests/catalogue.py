"""The catalogue of faults and attacks, in docs/reliability.md, the tests that try them and the mutants that these notice.

The page says of each case what happens and what must come of it, or, in place of tests, why the part that it concerns does not
exist. ``python tests/catalogue.py`` writes its columns of tests and mutants anew; ``--missing`` says what has none.
"""

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutants import ALL, Mutant

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "reliability.md"
_ROW = re.compile(r"\| \*\*([A-Z]{3}-\d+)\*\* (S[1-4]) \|")


@dataclass(frozen=True)
class Case:
    """One fault or attack: its family and number, its severity, and the page's cells on it."""

    id: str
    severity: str
    fault: str
    expected: str
    absent: str

    @property
    def lacks(self) -> str:
        if self.absent:
            return "no test, since it is said to be absent" if self.id in named_tests() else ""
        if self.id not in named_tests():
            return "a test"
        return "a mutant" if self.severity == "S1" and self.id not in mutants_of() else ""

    def row(self) -> str:
        tests = "<br>".join(f"`{test}`" for test in named_tests().get(self.id, [])) or self.absent
        mutants = "<br>".join(mutant.what for mutant in mutants_of().get(self.id, [])).replace("|", "\\|")
        return f"| {' | '.join((f'**{self.id}** {self.severity}', self.fault, self.expected, tests, mutants))} |"


def _case(line: str) -> Case:
    name, fault, expected, tests = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:5])
    case, severity = name.replace("*", "").split()
    return Case(case, severity, fault, expected, "" if tests.startswith("`test_") else tests)


LINES = PAGE.read_text().split("\n")
CASES = [_case(line) for line in LINES if _ROW.match(line)]
_FAMILIES = "|".join(sorted({case.id[:3].lower() for case in CASES}))
_NAMED = re.compile(rf"_({_FAMILIES})_(\d+)(?=_|$)")


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
    """The page with its tests and mutants as they should be."""
    return "\n".join(_case(line).row() if _ROW.match(line) else line for line in LINES)


if __name__ == "__main__":
    if "--missing" in sys.argv:
        for case in CASES:
            if case.lacks:
                sys.stdout.write(f"{case.id} {case.severity} lacks {case.lacks}: {case.fault}\n")
    else:
        PAGE.write_text(page())
