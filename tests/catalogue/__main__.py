"""``python tests/catalogue`` writes the tables of docs/reliability.md; ``--missing`` says what has no test or mutant."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from catalogue import CASES, PAGE, mutants_of, named_tests, page

if "--missing" in sys.argv:
    for case in CASES:
        lacks = [] if case.absent or case.id in named_tests() else ["test"]
        lacks += ["mutant"] if case.severity == "S1" and not case.absent and case.id not in mutants_of() else []
        if lacks:
            sys.stdout.write(f"{case.id} {case.severity} lacks a {' and a '.join(lacks)}: {case.fault}\n")
else:
    PAGE.write_text(page())
