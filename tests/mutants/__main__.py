"""Try mutants by hand: those whose names, places or tests hold all the words of the command line."""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mutants import ALL
from mutants.laboratory import Laboratory

chosen = [mutant for mutant in ALL if all(word in f"{mutant.what} {mutant.at} {mutant.test}" for word in sys.argv[1:])]
with tempfile.TemporaryDirectory() as scratch, Laboratory(Path(scratch)) as laboratory:
    for mutant in chosen:
        for subject in (None, mutant):
            begun = time.perf_counter()
            outcome, output = laboratory.outcome(subject, mutant.test)
            right = subject.noticed(outcome, output) if subject else outcome == "passed"
            whose, took = "mutant" if subject else "as it is", time.perf_counter() - begun
            sys.stdout.write(f"{'ok ' if right else 'BAD'} {outcome:7} {took:5.1f} s {whose}: {mutant.what}\n")
            sys.stdout.flush()
            if not right:
                sys.stdout.write(output)
