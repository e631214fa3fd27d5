"""``hubbub factorize``: one strategy, with its error, a bound, what it costs, a file and a picture."""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hubbub import families, files, published, strategy_file
from hubbub.cli.output import console, print_json, print_table, printable
from hubbub.cli.setting import MOST_DENSE, Setting, SettingFlags, require_output, root_errors
from hubbub.errors import ConfigError, DataError
from hubbub.factorization import Optimized
from hubbub.factorization.bounds import lower_bound
from hubbub.families import DESCRIPTIONS, Family
from hubbub.participation import SingleParticipation
from hubbub.strategies import Strategy
from hubbub.strategies.strategy import memory_rows

__all__ = ["Claims", "Outputs", "factorize"]

# Of an error that is computed again on another machine.
_SAME = 1e-6
_LONGEST = 400


@dataclass(frozen=True)
class Outputs:
    """Where an answer goes."""

    file: Path | None
    plot: Path | None
    as_json: bool
    command: str

    def require(self, rounds: int) -> None:
        """Refuse, before anything is computed, what could not be written."""
        require_output("--output", self.file, strategy_file.SUFFIX)
        require_output("--plot", self.plot, ".png")
        if self.plot is not None and rounds > MOST_DENSE:
            raise ConfigError(
                f"--plot {self.plot}: shows four dense matrices, of at most {MOST_DENSE:,} rounds, not {rounds:,}; leave it out"
            )


@dataclass(frozen=True)
class Claims:
    """What is said of a matrix from elsewhere, to be checked: the file of B, and how many bands C has."""

    b_matrix: str | None
    bands: int | None


def factorize(family: Family, flags: SettingFlags, said: Claims, outputs: Outputs) -> None:
    """Compute a strategy or check one from a file, print how good it is, write and draw it.

    Raises:
        ConfigError: Flags that do not suit one another.
        DataError: A file is not what it, or the flags, say.
    """
    if family.matrix is None:
        if said.b_matrix is not None:
            raise ConfigError(f"--b-matrix {said.b_matrix}: belongs to --matrix, the file of C")
        setting = flags.setting()
        _answer(family, setting, outputs, {}, lambda: families.answer_of(family, setting.workload, setting.participation))
    elif Path(family.matrix).suffix == strategy_file.SUFFIX:
        _again(family, family.matrix, flags, said, outputs)
    else:
        _verified(family, family.matrix, flags, said, outputs)


def _verified(family: Family, matrix: str, flags: SettingFlags, said: Claims, outputs: Outputs) -> None:
    """A published matrix."""
    found = published.verified(matrix, bands=said.bands)
    setting = flags.setting(found.strategy.rounds)
    stated = "" if said.bands is None else f", at most {said.bands} as stated"
    checks = {
        "lower triangular": "yes, no zero on the diagonal",
        "bands": f"{found.bands}{stated}",
        "norms of columns": f"{found.column_norms[0]!r} to {found.column_norms[1]!r}",
    }
    if said.b_matrix is not None:
        difference = published.decoder_difference(said.b_matrix, found.strategy, setting.workload)
        checks["B·C"] = f"the workload, to {difference:.2g} of its largest entry ({published.TOLERANCE:g} is allowed)"
    _answer(family, setting, outputs, checks, lambda: families.answer_of(family, setting.workload, setting.participation))


def _again(family: Family, matrix: str, flags: SettingFlags, said: Claims, outputs: Outputs) -> None:
    """What this command wrote, in the setting that the file states but for what was typed; in its own, its error is checked."""
    if said.b_matrix is not None or said.bands is not None:
        raise ConfigError(f"--b-matrix, --bands: are said of published matrices; {matrix} has them from hubbub")
    stored = strategy_file.load_answer(matrix)
    stated = stored.answer
    checks = {"made by": f"hubbub {stored.hubbub}, it says, by: {stored.command or 'unknown'}"}
    setting = flags.over(Setting(stated.workload, stated.participation))
    if setting != Setting(stated.workload, stated.participation):
        checks["setting"] = "another than the file states"
        _answer(family, setting, outputs, checks, lambda: families.answer_of(family, setting.workload, setting.participation))
        return

    def found() -> Optimized[Strategy]:
        roots = root_errors(setting, stated.strategy, stated.strategy.sensitivity(setting.participation).value)
        error = float((roots**2).mean() if stated.objective == "mean" else roots.max() ** 2)
        if not math.isclose(error, stated.squared_error, rel_tol=_SAME):
            raise DataError(f"{matrix}: states squared_error = {stated.squared_error!r}, it is {error!r}")
        bound = lower_bound(setting.workload, setting.participation, stated.objective)
        return replace(stated, squared_error=error, lower_bound=bound, bound_family="every strategy")

    checks["stated error"] = f"the same, to {_SAME:g}"
    _answer(family, setting, outputs, checks, found)


def _answer(
    family: Family, setting: Setting, outputs: Outputs, checks: dict[str, str], found: Callable[[], Optimized[Strategy]]
) -> None:
    """Compute, write, draw and print."""
    outputs.require(setting.workload.rounds)
    wall, cpu = time.perf_counter(), time.process_time()
    with console(stderr=True).status(f"{family.name}, {setting.workload.rounds:,} rounds …"):
        answer = found()
    seconds, waited = time.process_time() - cpu, time.perf_counter() - wall
    facts = {
        **_facts(family, setting, answer),
        "cpu_seconds": seconds,
        "wall_seconds": waited,
        "peak_memory_bytes": _peak_memory(),
        "checks": checks,
        "output": None if outputs.file is None else str(outputs.file),
        "plot": None if outputs.plot is None else str(outputs.plot),
    }
    if outputs.file is not None:
        strategy_file.save(outputs.file, answer, seconds=seconds, command=outputs.command)
    if outputs.plot is not None:
        files.write_atomic(outputs.plot, _picture(family, setting, answer), mode=0o644)
    if outputs.as_json:
        print_json(facts)
    else:
        print_table(f"{family.name}: {DESCRIPTIONS[family.name]}", _rows(setting, answer, facts))


def _facts(family: Family, setting: Setting, answer: Optimized[Strategy]) -> dict[str, Any]:
    sensitivity = answer.strategy.sensitivity(setting.participation)
    return {
        "family": family.name,
        "strategy": type(answer.strategy).__name__,
        **setting.as_json(),
        "objective": answer.objective,
        "squared_error": answer.squared_error,
        "root_squared_error": answer.root_squared_error,
        "lower_bound": answer.lower_bound,
        "bound_family": answer.bound_family,
        "relative_gap": answer.relative_gap,
        "iterations": answer.iterations,
        "l2_sensitivity": sensitivity.value,
        "sensitivity_exact": sensitivity.exact,
        "sensitivity_source": sensitivity.source,
        "column_norm": answer.strategy.sensitivity(SingleParticipation()).value,
        "memory_rows": memory_rows(answer.strategy),
    }


def _rows(setting: Setting, answer: Optimized[Strategy], facts: dict[str, Any]) -> dict[str, str]:
    """The facts as rows of a table, each number in full."""
    standing = "exact" if facts["sensitivity_exact"] else "a bound from above"
    remembered = facts["memory_rows"]
    rows = {
        **setting.words(),
        "squared error": f"{answer.squared_error!r} ({answer.objective} over rounds, at sensitivity 1)",
        "its root": f"{answer.root_squared_error!r}",
        "lower bound": f"{answer.lower_bound!r} (for {answer.bound_family})",
        "gap": f"at most {answer.relative_gap:.2g} of the squared error",
        "L2 sensitivity": f"{facts['l2_sensitivity']!r} ({standing})",
        "largest column norm": f"{facts['column_norm']!r}",
        "rows remembered": "unknown" if remembered is None else f"{remembered:,}",
        **facts["checks"],
        "time": f"{facts['cpu_seconds']:.2f} s of a processor, {facts['wall_seconds']:.2f} s by the clock",
        "peak memory": f"{facts['peak_memory_bytes'] / 2**20:,.0f} MiB, Python and libraries included",
        **{name: facts[key] for name, key in (("written to", "output"), ("drawn in", "plot")) if facts[key]},
    }
    return {name: printable(value, _LONGEST) for name, value in rows.items()}


def _picture(family: Family, setting: Setting, answer: Optimized[Strategy]) -> bytes:
    # Drawing costs a second to import.
    from hubbub.report.matrices import Curve, draw_matrices

    words = setting.words()
    curve = Curve(
        roots=root_errors(setting, answer.strategy, answer.strategy.sensitivity(setting.participation).value),
        objective=answer.objective,
        root=answer.root_squared_error,
        root_bound=math.sqrt(answer.lower_bound),
        bound_family=answer.bound_family,
    )
    title = f"{family.name}: {words['workload']}, {words['participation']}"
    return draw_matrices(title, setting.workload, answer.strategy, curve)


def _peak_memory() -> int:
    """Bytes that this process has held at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
