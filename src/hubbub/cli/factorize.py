"""``hubbub factorize``, one strategy with its error and a bound, and ``hubbub compare``, strategies side by side."""

import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from rich.table import Table

from hubbub._util import files
from hubbub._util.checks import Array, integer, one_of, rounds_count
from hubbub.cli.output import console, print_json, print_table, print_whole, printable, say
from hubbub.errors import ConfigError, DataError, HubbubError
from hubbub.factorization import published, strategy_file
from hubbub.factorization.bounds import lower_bound
from hubbub.factorization.families import BY_MATRIX, DESCRIPTIONS, Family, answer_of
from hubbub.factorization.optimized import Objective, Optimized
from hubbub.mechanism.participation import FixedEpochs, MinSeparation, Participation, SingleParticipation, participation_record
from hubbub.mechanism.strategies import Strategy
from hubbub.mechanism.strategies.strategy import memory_rows
from hubbub.mechanism.utility import squared_errors
from hubbub.mechanism.workloads import Workload

__all__ = ["Outputs", "Setting", "SettingFlags", "compare", "factorize", "pattern_of", "require_output"]

_Pair = tuple[int | None, int | None]
_COOLDOWN = "cooldown"
# Beyond this the dense matrices behind a picture, or behind the error of a strategy that is not optimized, take minutes.
_MOST_DENSE = 4096


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
            "participation": participation_words(self.participation),
        }

    def sentence(self) -> str:
        """One line."""
        words = self.words()
        return f"{words['rounds']} rounds of {words['workload']}; {words['participation']}"

    def as_json(self) -> dict[str, Any]:
        """Entries of a JSON object."""
        rates = self.workload.learning_rates
        return {
            "rounds": self.workload.rounds,
            "momentum": self.workload.momentum,
            "learning_rates": None if rates is None else list(rates),
            "participation": participation_record(self.participation),
        }


@dataclass(frozen=True)
class SettingFlags:
    """The flags that describe a setting; without participation, each client joins one round."""

    rounds: int | None
    momentum: float | None
    learning_rates: str | None
    separation: _Pair
    rotation: _Pair

    def setting(self, rounds: int | None = None, over: Setting | None = None) -> Setting:
        """The setting that the flags describe.

        Args:
            rounds: Without ``--rounds``.
            over: The setting of a file, for flags that were not given.

        Raises:
            ConfigError: Flags are missing or contradict each other, or the rounds are not those of the file's learning rates.
        """
        stated = None if over is None else over.workload
        if self.rounds is None and rounds is None and stated is None:
            raise ConfigError("--rounds: is missing; say how many rounds the strategy is for")
        n = rounds_count(next(x for x in (self.rounds, rounds, stated and stated.rounds) if x is not None))
        rates = None if stated is None else stated.learning_rates
        if self.learning_rates is not None:
            cooled = self.learning_rates == _COOLDOWN
            rates = published.cooldown(n) if cooled else published.learning_rates(self.learning_rates)
            if len(rates) != n:
                raise ConfigError(
                    f"--learning-rates {self.learning_rates}: has {len(rates)} entries: must have one for each of {n} rounds"
                )
        elif rates is not None and len(rates) != n:
            raise ConfigError(f"--rounds {n}: the file states {len(rates)} learning rates; say --learning-rates, too")
        momentum = (stated.momentum if stated else 0.0) if self.momentum is None else self.momentum
        given = any(value is not None for value in (*self.separation, *self.rotation))
        participation = over.participation if over and not given else pattern_of(n, self.separation, self.rotation)
        return Setting(Workload(n, momentum, rates), participation)


def pattern_of(rounds: int, separation: _Pair, rotation: _Pair) -> Participation:
    """The pattern of ``--min-separation`` with ``--max-participations``, or of ``--epochs`` with ``--rounds-per-epoch``."""
    separated, rotated = (any(value is not None for value in flags) for flags in (separation, rotation))
    if separated and rotated:
        raise ConfigError("--min-separation/--max-participations and --epochs/--rounds-per-epoch: say one of them")
    if rotated:
        epochs, rounds_per_epoch = rotation
        if rounds_per_epoch is None:
            raise ConfigError("--epochs: needs --rounds-per-epoch, the rounds from one participation to the next")
        period = integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
        return FixedEpochs(math.ceil(rounds / period) if epochs is None else epochs, period)
    if separated:
        least, most = separation
        b = 1 if least is None else integer("min_separation", least, at_least=1)
        return (
            SingleParticipation()
            if least is None and most == 1
            else MinSeparation(b, math.ceil(rounds / b) if most is None else most)
        )
    return SingleParticipation()


def participation_words(participation: Participation) -> str:
    """A pattern in words."""
    match participation:
        case SingleParticipation() | FixedEpochs(epochs=1) | MinSeparation(max_participations=1):
            return "one round of each client"
        case FixedEpochs(epochs, rounds_per_epoch):
            return f"up to {epochs:,} rounds of each client, whole multiples of {rounds_per_epoch:,} apart"
        case MinSeparation(min_separation, max_participations):
            return f"up to {max_participations:,} rounds of each client, at least {min_separation:,} apart"
        case other:
            return repr(other)


def _root_errors(setting: Setting, strategy: Strategy) -> Array:
    """The standard deviation of the error of each round, ``(rounds,)``: of unit noise, times the sensitivity."""
    roots: Array = squared_errors(setting.workload, strategy) ** 0.5 * strategy.sensitivity(setting.participation).value
    return roots


def require_output(flag: str, path: Path | None, suffix: str) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path is None:
        return
    if path.suffix != suffix:
        raise ConfigError(f"{flag} {path}: must end in {suffix}")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: is a folder")


# Of an error that is computed again on another machine.
_SAME = 1e-6
_LONGEST = 400


@dataclass(frozen=True)
class Outputs:
    """The files and the form of an answer, and the command line to record with it."""

    file: Path | None
    plot: Path | None
    as_json: bool
    command: str


def factorize(family: Family, flags: SettingFlags, b_matrix: str | None, bands: int | None, outputs: Outputs) -> None:
    """Compute a strategy or check one from a file, print its error, write and draw it.

    Args:
        family: With a ``matrix``, the strategy is read from that file.
        flags: Workload and participation.
        b_matrix: The file of B, published with C, to be checked.
        bands: The most bands that a published C may have.
        outputs: The files and the form of the answer.

    Raises:
        ConfigError: Flags that contradict each other.
        DataError: A file is not as it, or the flags, state.
    """
    if family.matrix is None:
        if b_matrix is not None:
            raise ConfigError(f"--b-matrix {b_matrix}: belongs to --matrix, the file of C")
        _answer(family, flags.setting(), outputs, {})
    elif Path(family.matrix).suffix == strategy_file.SUFFIX:
        if b_matrix is not None or bands is not None:
            raise ConfigError(f"--b-matrix, --bands: are said of published matrices; {family.matrix} has them from hubbub")
        _again(family, family.matrix, flags, outputs)
    else:
        _verified(family, family.matrix, flags, (b_matrix, bands), outputs)


def _verified(
    family: Family, matrix: str, flags: SettingFlags, stated: tuple[str | None, int | None], outputs: Outputs
) -> None:
    """Answer for a published matrix, after checks against its B and its stated number of bands."""
    b_matrix, bands = stated
    found = published.verified(matrix, bands=bands)
    setting = flags.setting(found.strategy.rounds)
    checks = {
        "lower triangular": "yes, no zero on the diagonal",
        "bands": f"{found.bands}" + ("" if bands is None else f", at most {bands} as stated"),
        "norms of columns": f"{found.column_norms[0]!r} to {found.column_norms[1]!r}",
    }
    if b_matrix is not None:
        difference = published.decoder_difference(b_matrix, found.strategy, setting.workload)
        checks["B·C"] = f"the workload, to {difference:.2g} of its largest entry ({published.TOLERANCE:g} is allowed)"
    _answer(family, setting, outputs, checks)


def _again(family: Family, matrix: str, flags: SettingFlags, outputs: Outputs) -> None:
    """Answer for a file of this command; the error that it states is computed again, unless the flags change its setting."""
    stored = strategy_file.load_answer(matrix)
    stated = stored.answer
    checks = {"made by": f"hubbub {stored.hubbub}, as stated, by: {stored.command or 'unknown'}"}
    own = Setting(stated.workload, stated.participation)
    setting = flags.setting(over=own)
    if setting != own:
        _answer(family, setting, outputs, {**checks, "setting": "different from that of the file"})
        return

    def found() -> Optimized[Strategy]:
        roots = _root_errors(setting, stated.strategy)
        error = float((roots**2).mean() if stated.objective == "mean" else roots.max() ** 2)
        if not math.isclose(error, stated.squared_error, rel_tol=_SAME):
            raise DataError(f"{matrix}: states squared_error = {stated.squared_error!r}, it is {error!r}")
        bound = lower_bound(setting.workload, setting.participation, stated.objective)
        return replace(stated, squared_error=error, lower_bound=bound, bound_family="every strategy")

    _answer(family, setting, outputs, {**checks, "stated error": f"the same, to {_SAME:g}"}, found)


def _answer(
    family: Family,
    setting: Setting,
    outputs: Outputs,
    checks: dict[str, str],
    found: Callable[[], Optimized[Strategy]] | None = None,
) -> None:
    """Compute, by default the strategy of the family; write, draw and print."""
    require_output("--output", outputs.file, strategy_file.SUFFIX)
    require_output("--plot", outputs.plot, ".png")
    if outputs.plot is not None and setting.workload.rounds > _MOST_DENSE:
        raise ConfigError(
            f"--plot {outputs.plot}: shows dense matrices, of at most {_MOST_DENSE:,} rounds, not {setting.workload.rounds:,}; "
            "leave it out"
        )
    wall, cpu = time.perf_counter(), time.process_time()
    with console(stderr=True).status(f"{family.name}, {setting.workload.rounds:,} rounds …"):
        answer = answer_of(family, setting.workload, setting.participation) if found is None else found()
    seconds, waited = time.process_time() - cpu, time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts = {
        **_facts(family, setting, answer),
        "cpu_seconds": seconds,
        "wall_seconds": waited,
        "peak_memory_bytes": peak if sys.platform == "darwin" else 1024 * peak,
        "checks": checks,
        "output": None if outputs.file is None else str(outputs.file),
        "plot": None if outputs.plot is None else str(outputs.plot),
    }
    if outputs.file is not None:
        strategy_file.save(outputs.file, answer, seconds=seconds, command=outputs.command)
    if outputs.plot is not None:
        # Drawing costs a second to import.
        from hubbub.report.pictures import draw_matrices

        title = f"{family.name}: {setting.words()['workload']}, {setting.words()['participation']}"
        files.write_atomic(outputs.plot, draw_matrices(title, answer, _root_errors(setting, answer.strategy)), mode=0o644)
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
        "l2_sensitivity": sensitivity.stated(),
        "sensitivity_exact": sensitivity.exact,
        "sensitivity_source": sensitivity.source,
        "column_norm": answer.strategy.sensitivity(SingleParticipation()).stated(),
        "memory_rows": memory_rows(answer.strategy),
    }


def _rows(setting: Setting, answer: Optimized[Strategy], facts: dict[str, Any]) -> dict[str, str]:
    """The facts as rows of a table, each number in full."""
    standing = "exact" if facts["sensitivity_exact"] else "an upper bound"
    remembered = facts["memory_rows"]
    rows = {
        **setting.words(),
        "squared error": f"{answer.squared_error!r} ({answer.objective} over rounds, at sensitivity 1)",
        "its root": f"{answer.root_squared_error!r}",
        "lower bound": f"{answer.lower_bound!r} (for {answer.bound_family})",
        "gap": f"at most {answer.relative_gap:.2g} of the squared error",
        "L2 sensitivity": f"{facts['l2_sensitivity']!r} ({standing})",
        "largest column norm": f"{facts['column_norm']!r}",
        "rows of noise kept": "unknown" if remembered is None else f"{remembered:,}",
        **facts["checks"],
        "time": f"{facts['cpu_seconds']:.2f} s of CPU time, {facts['wall_seconds']:.2f} s elapsed",
        "peak memory": f"{facts['peak_memory_bytes'] / 2**20:,.0f} MiB, Python and libraries included",
        **{name: facts[key] for name, key in (("written to", "output"), ("drawn in", "plot")) if facts[key]},
    }
    return {name: printable(value, _LONGEST) for name, value in rows.items()}


def compare(setting: Setting, knobs: Mapping[str, Any], names: str | None, *, plot: Path | None, as_json: bool) -> None:
    """Compute strategies, print a table in the order of their errors, and draw these.

    Args:
        setting: Workload and participation.
        knobs: ``bands``, ``buffers`` and ``objective``; each family takes those that it has.
        names: Families, separated by commas; ``None`` for all.
        plot: The file of the picture.
        as_json: Print one JSON object instead.

    Raises:
        ConfigError: No family can be computed, or the picture cannot be written.
    """
    rounds = setting.workload.rounds
    objective: Objective = one_of("objective", knobs["objective"], ("mean", "max"))  # type: ignore[assignment] # as checked
    known = [name for name in DESCRIPTIONS if name != "file"]
    asked = known if names is None else [one_of("--families", name.strip(), known) for name in names.split(",")]
    for key in ("bands", "buffers"):
        _require_taken(key, knobs[key], asked)
    require_output("--plot", plot, ".png")
    if plot is not None and rounds > _MOST_DENSE:
        raise ConfigError(f"--plot {plot}: draws each round, of at most {_MOST_DENSE:,}, not {rounds:,}; leave it out")
    found, left_out = _computed(setting, knobs, list(dict.fromkeys(asked)))
    if not found:
        name, reason = next(iter(left_out.items()))
        raise ConfigError(f"--families: none of them can be computed; {name}: {reason}")
    # The best bound for every strategy: a quick one, or one that an answer proved.
    answers = [one.answer for one in found]
    proved = [a.lower_bound for a in answers if a.bound_family == "every strategy" and a.objective == objective]
    bound = math.sqrt(max([lower_bound(setting.workload, setting.participation, objective), *proved]))
    found.sort(key=lambda one: one.root(objective) or math.inf)
    rows = [one.row(found[0].root(objective), bound, objective) for one in found]
    if plot is not None:
        # Drawing costs a second to import.
        from hubbub.report.pictures import draw_errors

        curves = {one.name: one.roots for one in found if one.roots is not None}
        files.write_atomic(plot, draw_errors("Error of each strategy", setting.sentence(), curves), mode=0o644)
    if as_json:
        shared = {"objective": objective, "root_lower_bound": bound, "plot": None if plot is None else str(plot)}
        print_json({**setting.as_json(), **shared, "strategies": rows, "left_out": left_out})
    else:
        _print_compared(setting, objective, rows, bound, left_out)


@dataclass(frozen=True, eq=False)
class _Compared:
    """One strategy; errors are at sensitivity 1, and of each round unless there are too many."""

    name: str
    answer: Optimized[Strategy]
    roots: Array | None
    cpu_seconds: float
    exact: bool

    def root(self, objective: str) -> float | None:
        """The root of the mean or of the largest squared error."""
        if self.roots is not None:
            return math.sqrt(float((self.roots**2).mean())) if objective == "mean" else float(self.roots.max())
        return self.answer.root_squared_error if objective == self.answer.objective else None

    def row(self, least: float | None, bound: float, objective: Objective) -> dict[str, Any]:
        """Its entry in the JSON object."""
        error = self.root(objective)
        return {
            "family": self.name,
            "root_mean_squared_error": self.root("mean"),
            "root_max_squared_error": self.root("max"),
            "relative_to_best": None if error is None or least is None else error / least,
            "relative_to_bound": None if error is None else error / bound,
            "sensitivity_exact": self.exact,
            "memory_rows": memory_rows(self.answer.strategy),
            "cpu_seconds": self.cpu_seconds,
        }


def _require_taken(key: str, value: int | None, names: Sequence[str]) -> None:
    """Refuse a number that none of these families takes."""
    refusals = []
    for name in names if value is not None else ():
        try:
            replace(Family(name), **{key: value})  # type: ignore[arg-type] # bands and buffers are such numbers
        except ConfigError as error:
            refusals.append(error)
        else:
            return
    if refusals:
        raise ConfigError(f"--{key} with --families {','.join(names)}: none of them takes it; {refusals[0]}")


def _computed(setting: Setting, knobs: Mapping[str, Any], names: Sequence[str]) -> tuple[list[_Compared], dict[str, str]]:
    """The strategies, and why families were left out."""
    found: list[_Compared] = []
    left_out: dict[str, str] = {}
    many = setting.workload.rounds > _MOST_DENSE
    with console(stderr=True).status("…") as status:
        for name in names:
            family = Family(name)
            for key, value in knobs.items():
                with suppress(ConfigError):
                    family = replace(family, **{key: value})
            status.update(f"{name}, {setting.workload.rounds:,} rounds …")
            try:
                if many and name in BY_MATRIX:
                    raise ValueError(f"its error is computed from its matrix, for at most {_MOST_DENSE:,} rounds")
                started = time.process_time()
                answer = answer_of(family, setting.workload, setting.participation)
                seconds = time.process_time() - started
                roots = None if many else _root_errors(setting, answer.strategy)
                exact = answer.strategy.sensitivity(setting.participation).exact
                found.append(_Compared(name, answer, roots, seconds, exact))
            except (HubbubError, ValueError) as error:
                left_out[name] = printable(" ".join(str(error).split()), _LONGEST)
    return found, left_out


_TABLE = 90


def _print_compared(
    setting: Setting, objective: Objective, rows: Sequence[dict[str, Any]], bound: float, left_out: dict[str, str]
) -> None:
    screen = console()
    say(screen, setting.sentence())
    # Rounded down, so that the printed bound is proved.
    least = f"{Decimal(bound).quantize(Decimal(1).scaleb(Decimal(bound).adjusted() - 5), rounding=ROUND_FLOOR):f}"
    say(
        screen,
        f"No matrix C, with any decoder, has a root squared error below {least} ({objective} over rounds, at L2 sensitivity 1 "
        "to the rounds that one client may join).",
    )
    say(screen)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("strategy", no_wrap=True)
    for column in ("RMSE", "largest", "over best", "over bound", "rows kept", "CPU s"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["family"],
            _number(row["root_mean_squared_error"], row["sensitivity_exact"]),
            _number(row["root_max_squared_error"], row["sensitivity_exact"]),
            _excess(row["relative_to_best"]),
            _excess(row["relative_to_bound"]),
            "unknown" if row["memory_rows"] is None else f"{row['memory_rows']:,}",
            f"{row['cpu_seconds']:.2f}",
        )
    print_whole(table, _TABLE)
    if not all(row["sensitivity_exact"] for row in rows):
        say(screen, "≤: the sensitivity is an upper bound, and so is the error.")
    if left_out:
        say(screen)
        say(screen, "Left out:")
        for name, reason in left_out.items():
            say(screen, f"  {name}: {reason}", indent=4)


def _number(value: float | None, exact: bool) -> str:
    return "-" if value is None else f"{'' if exact else '≤ '}{value:.5g}"


def _excess(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "best" if ratio == 1 else f"+{100 * (ratio - 1):,.2f} %"
