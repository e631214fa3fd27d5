"""``hubbub factorize``, one strategy with its error and a bound, and ``hubbub compare``, strategies side by side."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from hubbub._util import files, to_digits
from hubbub._util.checks import Array, integer, one_of, rounds_count
from hubbub.accounting.wording import cohort_words
from hubbub.cli.output import WIDE, console, grid, print_columns, print_json, print_table, printable, require_output, say
from hubbub.errors import ConfigError, DataError, HubbubError
from hubbub.factorization import FAMILIES, published, strategy_file
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.families import DESCRIPTIONS, Family, answer_of, squared_errors
from hubbub.factorization.optimized import Objective, Optimized
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, participation_record
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.mechanism.workloads import Workload

# Beyond this the dense matrices behind a picture, or behind the error of a strategy that is not optimized, take minutes.
_MOST_DENSE = 4096
# The relative difference of errors that were computed on two machines.
_SAME = 1e-6
_LONGEST = 400
PATTERN_FLAGS = tuple(field.name for kind in (MinSeparation, FixedEpochs) for field in fields(kind))


@dataclass(frozen=True)
class Setting:
    """A workload and a participation."""

    workload: Workload
    participation: Participation

    def words(self) -> dict[str, str]:
        """Rows of a table."""
        rates = self.workload.learning_rates
        parts = [f"momentum {self.workload.momentum:g}"] if self.workload.momentum else []
        parts += [] if rates is None else [f"learning rates {min(rates):g} to {max(rates):g}"]
        return {
            "rounds": f"{self.workload.rounds:,}",
            "workload": "SGD with " + ", ".join(parts) if parts else "prefix sums",
            "participation": cohort_words(self.participation, rounds=self.workload.rounds),
        }

    def as_json(self) -> dict[str, Any]:
        """Entries of a JSON object."""
        rates = self.workload.learning_rates
        return {
            "rounds": self.workload.rounds,
            "momentum": self.workload.momentum,
            "learning_rates": None if rates is None else list(rates),
            "participation": participation_record(self.participation),
        }

    def root_errors(self, strategy: Strategy) -> Array:
        """The standard deviation of the error of each round, ``(rounds,)``: of unit noise, times the sensitivity."""
        roots: Array = squared_errors(self.workload, strategy) ** 0.5 * strategy.sensitivity(self.participation).value
        return roots


def setting_of(flags: Mapping[str, Any], rounds: int | None = None, stated: Setting | None = None) -> Setting:
    """The setting that the given flags describe; without participation, each client joins one round.

    Flags that were not given have the values of ``stated``, the setting of a file; ``rounds`` stands for ``--rounds``.
    """
    workload = None if stated is None else stated.workload
    found = flags.get("rounds", rounds if workload is None else workload.rounds)
    if found is None:
        raise ConfigError("--rounds: is missing; say how many rounds the strategy is for")
    n = rounds_count("rounds", found)
    rates = None if workload is None else workload.learning_rates
    if (named := flags.get("learning_rates")) is not None:
        rates = published.cooldown(n) if named == "cooldown" else published.learning_rates(named)
        if len(rates) != n:
            raise ConfigError(f"--learning-rates {named}: has {len(rates)} entries: must have one for each of {n} rounds")
    elif rates is not None and len(rates) != n:
        raise ConfigError(f"--rounds {n}: the file states {len(rates)} learning rates; say --learning-rates, too")
    momentum = flags.get("momentum", 0.0 if workload is None else workload.momentum)
    pattern = {name: flags[name] for name in PATTERN_FLAGS if name in flags}
    participation = pattern_of(n, pattern) if pattern or stated is None else stated.participation
    return Setting(Workload(n, momentum, rates), participation)


def pattern_of(rounds: int, flags: Mapping[str, int]) -> Participation:
    """The pattern of ``min_separation`` with ``max_participations``, or of ``epochs`` with ``rounds_per_epoch``."""
    rotated, separated = flags.keys() & {"epochs", "rounds_per_epoch"}, flags.keys() & {"min_separation", "max_participations"}
    if rotated and separated:
        raise ConfigError("--min-separation/--max-participations and --epochs/--rounds-per-epoch: say one of them")
    if rotated:
        if "rounds_per_epoch" not in flags:
            raise ConfigError("--epochs: needs --rounds-per-epoch, the rounds from one participation to the next")
        period = integer("rounds_per_epoch", flags["rounds_per_epoch"], at_least=1)
        return FixedEpochs(flags.get("epochs", math.ceil(rounds / period)), period)
    if flags in ({}, {"max_participations": 1}):
        return SingleParticipation()
    b = integer("min_separation", flags.get("min_separation", 1), at_least=1)
    return MinSeparation(b, flags.get("max_participations", math.ceil(rounds / b)))


def _require_picture(plot: Path | None, rounds: int) -> None:
    require_output("--plot", plot, ".png")
    if plot is not None and rounds > _MOST_DENSE:
        raise ConfigError(f"--plot {plot}: is drawn for at most {_MOST_DENSE:,} rounds, not {rounds:,}; leave it out")


def factorize(
    name: str, flags: Mapping[str, Any], *, output: Path | None, plot: Path | None, as_json: bool, command: str
) -> None:
    """Compute a strategy of a family or check one from a file, print its error, write and draw it.

    With a ``matrix`` among the flags the strategy is read from that file; ``b_matrix`` is the file of B, published with it, and
    ``bands`` the most bands that it may have. The written file states the ``command``.
    """
    matrix, bands = flags.get("matrix"), flags.get("bands")
    one_of("FAMILY", name, DESCRIPTIONS)
    family = Family(name, bands if matrix is None else None, flags.get("buffers"), flags.get("objective"), matrix)
    setting, stored, checks = _stated(matrix, flags)
    require_output("--output", output, strategy_file.SUFFIX)
    _require_picture(plot, setting.workload.rounds)
    started = time.process_time()
    with console(stderr=True).status(f"{family.name}, {setting.workload.rounds:,} rounds …"):
        if stored is None:
            answer = answer_of(family, setting.workload, setting.participation)
        else:
            answer = _computed_again(str(matrix), setting, stored)
            checks["stated error"] = f"the same, to {_SAME:g}"
    seconds = time.process_time() - started
    if output is not None:
        strategy_file.save(output, answer, seconds=seconds, command=command)
    if plot is not None:
        # Drawing costs a second to import.
        from hubbub.report.pictures import draw_matrices

        title = f"{family.name}: {setting.words()['workload']}, {setting.words()['participation']}"
        files.write_atomic(plot, draw_matrices(title, answer, setting.root_errors(answer.strategy)), mode=0o644)
    sensitivity = answer.strategy.sensitivity(setting.participation)
    facts = {
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
        "l2_sensitivity": sensitivity.stated(),
        "sensitivity_exact": sensitivity.exact,
        "sensitivity_source": sensitivity.source,
        "column_norm": answer.strategy.sensitivity(SingleParticipation()).stated(),
        "memory_rows": memory_rows(answer.strategy),
        "cpu_seconds": seconds,
        "checks": checks,
        "output": None if output is None else str(output),
        "plot": None if plot is None else str(plot),
    }
    if as_json:
        print_json(facts)
    else:
        print_table(f"{family.name}: {DESCRIPTIONS[family.name]}", _rows(setting, answer, facts))


def _stated(matrix: str | None, flags: Mapping[str, Any]) -> tuple[Setting, Optimized[Strategy] | None, dict[str, str]]:
    """The setting of the flags or of a strategy file, the answer of that file for its own setting, and what was checked."""
    b_matrix, bands = flags.get("b_matrix"), flags.get("bands")
    if matrix is None:
        if b_matrix is not None:
            raise ConfigError(f"--b-matrix {b_matrix}: belongs to --matrix, the file of C")
        return setting_of(flags), None, {}
    if Path(matrix).suffix == strategy_file.SUFFIX:
        if b_matrix is not None or bands is not None:
            raise ConfigError(f"--b-matrix, --bands: are said of published matrices; {matrix} has them from hubbub")
        file = strategy_file.load_answer(matrix)
        checks = {"made by": f"hubbub {file.hubbub}, as stated, by: {file.command or 'unknown'}"}
        own = Setting(file.answer.workload, file.answer.participation)
        setting = setting_of(flags, stated=own)
        if setting == own:
            return setting, file.answer, checks
        return setting, None, {**checks, "setting": "different from that of the file"}
    found = published.verified(matrix, bands=bands)
    setting, norms = setting_of(flags, found.rounds), np.linalg.norm(found.matrix(), axis=0)
    checks = {
        "lower triangular": "yes, no zero on the diagonal",
        "bands": f"{found.bands}" + ("" if bands is None else f", at most {bands} as stated"),
        "norms of columns": f"{float(norms.min())!r} to {float(norms.max())!r}",
    }
    if b_matrix is not None:
        difference = published.decoder_difference(b_matrix, found, setting.workload)
        checks["B·C"] = f"the workload, to {difference:.2g} of its largest entry ({published.TOLERANCE:g} is allowed)"
    return setting, None, checks


def _computed_again(matrix: str, setting: Setting, stated: Optimized[Strategy]) -> Optimized[Strategy]:
    """The answer of a strategy file with its error computed again, and a bound for every strategy."""
    roots = setting.root_errors(stated.strategy)
    error = float((roots**2).mean() if stated.objective == "mean" else roots.max() ** 2)
    if not math.isclose(error, stated.squared_error, rel_tol=_SAME):
        raise DataError(f"{matrix}: states squared_error = {stated.squared_error!r}, it is {error!r}")
    bound = lower_bound(setting.workload, setting.participation, "max" if stated.objective == "max" else "mean")
    return replace(stated, squared_error=error, lower_bound=bound, bound_family="every strategy")


def _rows(setting: Setting, answer: Optimized[Strategy], facts: Mapping[str, Any]) -> dict[str, str]:
    rows = {
        **setting.words(),
        "squared error": f"{answer.squared_error!r} ({answer.objective} over rounds, at sensitivity 1)",
        "its root": f"{answer.root_squared_error!r}",
        "lower bound": f"{answer.lower_bound!r} (for {answer.bound_family})",
        "gap": f"at most {float(to_digits(answer.relative_gap, 2, 'ROUND_CEILING')):g} of the squared error",
        "L2 sensitivity": f"{facts['l2_sensitivity']!r} ({'exact' if facts['sensitivity_exact'] else 'an upper bound'})",
        "largest column norm": f"{facts['column_norm']!r}",
        "rows of noise kept": _count(facts["memory_rows"]),
        **facts["checks"],
        **{name: facts[key] for name, key in (("written to", "output"), ("drawn in", "plot")) if facts[key]},
    }
    return {name: printable(value, _LONGEST) for name, value in rows.items()}


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def compare(setting: Setting, options: Mapping[str, Any], names: str | None, *, plot: Path | None, as_json: bool) -> None:
    """Compute strategies, print a table in the order of their errors, and draw these."""
    objective: Objective = one_of("objective", options["objective"], ("mean", "max"))  # type: ignore[assignment] # as checked
    known = [name for name in DESCRIPTIONS if name != "file"]
    asked = known if names is None else [one_of("--families", name.strip(), known) for name in names.split(",")]
    # Each has the options that it takes.
    taken = {name: {key: value for key, value in options.items() if key in FAMILIES[name].options} for name in asked}
    families = [Family(name, **own) for name, own in taken.items()]
    for key in ("bands", "buffers"):
        if options[key] is not None and all(getattr(family, key) is None for family in families):
            raise ConfigError(f"--{key} with --families {','.join(asked)}: none of them takes it; leave it out")
    _require_picture(plot, setting.workload.rounds)
    rows, curves, bound, left_out = _all_compared(setting, families, objective)
    if not rows:
        name, reason = next(iter(left_out.items()))
        raise ConfigError(f"--families: none of them can be computed; {name}: {reason}")
    words = setting.words()
    sentence = f"{words['rounds']} rounds of {words['workload']}; {words['participation']}"
    if plot is not None:
        # Drawing costs a second to import.
        from hubbub.report.pictures import draw_errors

        drawn = {row["family"]: curves[row["family"]] for row in rows if row["family"] in curves}
        files.write_atomic(plot, draw_errors("Error of each strategy", sentence, drawn), mode=0o644)
    if as_json:
        shared = {"objective": objective, "root_lower_bound": bound, "plot": None if plot is None else str(plot)}
        print_json({**setting.as_json(), **shared, "strategies": rows, "left_out": left_out})
        return
    say(console(), sentence)
    _print_compared(rows, bound, objective)
    if left_out:
        say(console(), "", "Left out:", *(f"  {name}: {reason}" for name, reason in left_out.items()), indent=4)


def _print_compared(rows: Sequence[Mapping[str, Any]], bound: float, objective: Objective) -> None:
    screen = console()
    # Rounded down, so that the printed bound is proved.
    least = f"{to_digits(bound, 6, 'ROUND_FLOOR'):f}"
    say(
        screen,
        f"No matrix C, with any decoder, has a root squared error below {least} ({objective} over rounds, at L2 sensitivity 1 "
        "to the rounds that one client may join).",
        "",
    )
    columns = ("strategy", "RMSE", "largest", "over best", "over bound", "rows kept", "CPU s")
    print_columns(grid(columns, map(_cells, rows)), WIDE)
    if not all(row["sensitivity_exact"] for row in rows):
        say(screen, "≤: the sensitivity is an upper bound, and so is the error.")


def _all_compared(
    setting: Setting, families: Sequence[Family], objective: Objective
) -> tuple[list[dict[str, Any]], dict[str, Array], float, dict[str, str]]:
    """The JSON object of each strategy, best first; errors of each round; the root of a bound; why others were left out."""
    rows: list[dict[str, Any]] = []
    bounds = [lower_bound(setting.workload, setting.participation, objective)]
    curves: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    many = setting.workload.rounds > _MOST_DENSE
    with console(stderr=True).status("…") as status:
        for family in families:
            status.update(f"{family.name}, {setting.workload.rounds:,} rounds …")
            if many and FAMILIES[family.name].closed_form:
                left_out[family.name] = f"its error is computed from its matrix, for at most {_MOST_DENSE:,} rounds"
                continue
            started = time.process_time()
            try:
                answer = answer_of(family, setting.workload, setting.participation)
                seconds = time.process_time() - started
                errors = {str(answer.objective): answer.root_squared_error}
                if not many:
                    roots = setting.root_errors(answer.strategy)
                    errors = {"mean": math.sqrt(float((roots**2).mean())), "max": float(roots.max())}
                    curves[family.name] = roots
                exact, kept = answer.strategy.sensitivity(setting.participation).exact, memory_rows(answer.strategy)
            except (HubbubError, ValueError) as error:
                left_out[family.name] = printable(" ".join(str(error).split()), _LONGEST)
                continue
            rows.append(
                {
                    "family": family.name,
                    "root_mean_squared_error": errors.get("mean"),
                    "root_max_squared_error": errors.get("max"),
                    "sensitivity_exact": exact,
                    "memory_rows": kept,
                    "cpu_seconds": seconds,
                }
            )
            if answer.bound_family == "every strategy" and answer.objective == objective:
                bounds.append(answer.lower_bound)
    # The best of the bounds that were proved for every strategy.
    bound, key = math.sqrt(max(bounds)), f"root_{objective}_squared_error"
    rows.sort(key=lambda row: row[key] or math.inf)
    for row in rows:
        row["relative_to_best"] = row[key] / rows[0][key] if row[key] else None
        row["relative_to_bound"] = row[key] / bound if row[key] else None
    return rows, curves, bound, left_out


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    roots = []
    for root in (row["root_mean_squared_error"], row["root_max_squared_error"]):
        if root is None:
            roots.append("-")
        else:
            roots.append(f"{root:.5g}" if row["sensitivity_exact"] else f"≤ {float(to_digits(root, 5, 'ROUND_CEILING')):g}")
    return (
        row["family"],
        *roots,
        _excess(row["relative_to_best"]),
        _excess(row["relative_to_bound"]),
        _count(row["memory_rows"]),
        f"{row['cpu_seconds']:.2f}",
    )


def _excess(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "best" if ratio == 1 else f"+{100 * (ratio - 1):,.2f} %"
