"""``hubbub factorize``: one strategy, with its error, a bound, what it costs, a file and a picture."""

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hubbub import families, files, published, strategy_file
from hubbub.cli.output import console, print_json, print_table, printable, say
from hubbub.cli.setting import MOST_DENSE, Setting, require_output, root_errors
from hubbub.errors import ConfigError, DataError
from hubbub.families import DESCRIPTIONS, Family
from hubbub.participation import SingleParticipation
from hubbub.strategies import Described, Optimized, Strategy

__all__ = ["Outputs", "PublishedFiles", "factorize", "factorize_file"]

# Of an error that is computed again on another machine.
_SAME = 1e-6


@dataclass(frozen=True)
class Outputs:
    """Where an answer goes."""

    file: Path | None
    plot: Path | None
    as_json: bool

    def require(self, rounds: int) -> None:
        """Refuse, before anything is computed, what could not be written."""
        require_output("--output", self.file, strategy_file.SUFFIX)
        require_output("--plot", self.plot, ".png")
        if self.plot is not None and rounds > MOST_DENSE:
            raise ConfigError(
                f"--plot {self.plot}: shows four dense matrices, of at most {MOST_DENSE:,} rounds, not {rounds:,}; leave it out"
            )


@dataclass(frozen=True)
class PublishedFiles:
    """A matrix from elsewhere: the file of C, that of B, and how many bands it is said to have."""

    matrix: str
    b_matrix: str | None
    bands: int | None


def factorize(family: Family, setting: Setting, outputs: Outputs, checks: dict[str, Any] | None = None) -> None:
    """Compute a strategy, print how good it is, write and draw it.

    Args:
        family: Which.
        setting: What for.
        outputs: Where to.
        checks: What was verified before, for the same table.
    """
    outputs.require(setting.workload.rounds)
    wall, cpu = time.perf_counter(), time.process_time()
    with console(stderr=True).status(f"{family.name}, {setting.workload.rounds:,} rounds …"):
        answer = families.answer_of(family, setting.workload, setting.participation)
    seconds = time.process_time() - cpu
    facts = {
        **_facts(family, setting, answer),
        "cpu_seconds": seconds,
        "wall_seconds": time.perf_counter() - wall,
        "peak_memory_bytes": _peak_memory(),
        "checks": checks or {},
        "file": None if outputs.file is None else str(outputs.file),
        "plot": None if outputs.plot is None else str(outputs.plot),
    }
    if outputs.file is not None:
        strategy_file.save(outputs.file, answer, seconds=seconds, command=_command())
    if outputs.plot is not None:
        files.write_atomic(outputs.plot, _picture(family, setting, answer), mode=0o644)
    if outputs.as_json:
        print_json(facts)
        return
    print_table(printable(f"{family.name}: {DESCRIPTIONS[family.name]}"), _rows(setting, answer, facts))


def factorize_file(source: PublishedFiles, family: Family, setting: Setting | None, outputs: Outputs) -> None:
    """The same for a matrix from elsewhere, after everything that can be checked was.

    Args:
        source: What to check.
        family: ``"file"`` or ``"dense"``, with the matrix.
        setting: What for; ``None`` for that which the file states, or one participation and prefix sums.
        outputs: Where to.

    Raises:
        ConfigError: Flags that do not suit the file.
        DataError: The file is not what it, or the flags, say.
    """
    if Path(source.matrix).suffix == strategy_file.SUFFIX:
        _factorize_stored(source, family, setting, outputs)
        return
    found = published.verified(
        source.matrix, None if setting is None else setting.workload, b_matrix=source.b_matrix, bands=source.bands
    )
    checks: dict[str, Any] = {
        "lower_triangular": True,
        "bands": found.bands,
        "least_column_norm": found.column_norms[0],
        "largest_column_norm": found.column_norms[1],
        "difference_of_bc": found.difference,
    }
    if setting is None:
        raise ConfigError(f"--rounds: is missing; {source.matrix} has {found.strategy.rounds}")
    factorize(family, setting, outputs, checks)


def _factorize_stored(source: PublishedFiles, family: Family, setting: Setting | None, outputs: Outputs) -> None:
    if source.b_matrix is not None or source.bands is not None:
        raise ConfigError(f"--b-matrix and --bands: are for published matrices; {source.matrix} was written by hubbub")
    stored = strategy_file.load_answer(source.matrix)
    if isinstance(stored.answer.strategy, Described):
        raise DataError(f"{source.matrix}: holds the matrix of a strategy from outside ({stored.answer.strategy.origin}) only")
    raise NotImplementedError
