"""Flower: its own differential privacy beside ours, check by check, and what the in-process engine costs.

Without options both are printed; with --defects the checks alone, with any other option the engine's rows alone.
"""

import logging
import sys
from importlib.metadata import version
from pathlib import Path

import _runner
from _flower_engine import engine_speed_rows

# The checks are those of the tests: what is shown here is what fails there.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from flower_arms import FLOWERS, OURS, Arm
from flower_defects import QUESTIONS, DefectError, Question


def answer(question: Question, arm: Arm) -> tuple[bool, str]:
    """Whether a library does what is asked, and what was observed."""
    try:
        return True, f"yes: {question.check(arm)}"
    except DefectError as defect:
        return False, f"**no**: {defect}"


def defects() -> bool:
    """Print the table; whether ours does all that is asked."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"| what is asked | Flower's own, {version('flwr')} | hubbub's |\n|---|---|---|")
    good = True
    for question in QUESTIONS:
        (_, theirs), (does, ours) = (answer(question, arm) for arm in (FLOWERS, OURS))
        good &= does
        cells = (cell.replace("|", "\\|") for cell in (question.asked, theirs, ours))
        print(f"| {' | '.join(cells)} |", flush=True)
    return good


if __name__ == "__main__":
    asked = sys.argv[1:]
    held = defects() if asked in ([], ["--defects"]) else True
    if asked == ["--defects"]:
        sys.exit(not held)
    if not asked:
        print()
    try:
        _runner.main(__doc__, engine_speed_rows)
    except SystemExit as end:
        sys.exit(end.code or not held)
