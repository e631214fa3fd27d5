"""The report of one or several runs as one HTML page: no other file, no network; light, dark and in print."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from hubbub.accounting import rounded_up
from hubbub.accounting.statement import library_versions, no_less, zcdp_standing
from hubbub.accounting.wording import count
from hubbub.report.audit import audit_rows
from hubbub.report.charts import charts
from hubbub.report.citations import bibtex, cited
from hubbub.report.summary import RunSummary, some, whose

# The tables of rounds have at most this many rows.
_MOST_ROWS = 12
# The durations in a row of metrics, and the phases of a round in their order.
_SECONDS = {
    "seconds": "a whole round",
    "encrypt_seconds": "encrypt, all clients one after the other",
    "aggregate_seconds": "add the ciphertexts, server",
    "decrypt_seconds": "decrypt the sum, key holders",
}
_PHASES = {
    "sample": "sample the cohort",
    "aggregate": "train, clip, sum",
    "record": "record the cost",
    "noise": "add noise, open",
    "persist": "write to disk",
    "update": "update the model",
    "account": "compute epsilon",
    "evaluate": "evaluate the model",
}


@dataclass(frozen=True)
class Fact:
    """A line of a report about a run's guarantee; ``public`` if it follows from settings and releases alone."""

    name: str
    value: str
    public: bool


def page(runs: Sequence[RunSummary], *, public: bool = False) -> str:
    """The page as HTML."""
    names = [run.name for run in runs]
    # Folders of the same name get numbers.
    runs = [
        replace(run, number=number, name=f"{run.name} ({number + 1})" if names.count(run.name) > 1 else run.name)
        for number, run in enumerate(runs)
    ]
    return rendered(
        "report.html",
        title=" and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs",
        runs=[_run(run, public=public) for run in runs],
        charts=list(charts(runs, public=public)),
        public=public,
        versions=library_versions(),
        references=bibtex(list(dict.fromkeys(key for run in runs for key in cited(run)))),
    )


def rendered(template: str, **values: Any) -> str:
    """A template of the package, filled with values; in HTML their text is escaped."""
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    loader = PackageLoader("hubbub.report")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(rounded_up=rounded_up, no_less=no_less, audit_rows=audit_rows)
    environment.globals.update(count=count)
    return environment


def _run(run: RunSummary, *, public: bool) -> dict[str, Any]:
    """The values of a run in the template, next to the run itself."""
    # Whatever is of held-out clients' data stays off a public page.
    evaluated = [] if public and not run.public else run.evaluated
    last = evaluated[-1] if evaluated else None
    return {
        "run": run,
        "guarantee": run.guarantee,
        "begun": len(run.recorded.history.rounds),
        "planned": run.recorded.promise.rounds,
        "warnings": run.cost.public_warnings() if public else run.cost.warnings(),
        "accuracy": last and f"{100 * last['accuracy']:.2f} %",
        "loss": last and _loss(last),
        "measured_on": "test data" if run.public else f"held-out {whose(run.guarantee)}",
        "evaluations": evaluations(run, _MOST_ROWS) if last else [],
        "costs": [] if public else list(costs(run)),
        "facts": [fact for fact in facts(run) if fact.public or not public],
        "audit": run.audit,
        "config": "" if public else run.config.strip(),
    }


def facts(run: RunSummary) -> Iterator[Fact]:
    """The facts of a run's guarantee."""
    guarantee, settings = run.guarantee, run.recorded.promise.settings
    yield Fact("unit", f"one {guarantee.privacy_unit}", public=True)
    if not guarantee.private:
        return
    yield Fact("neighboring relation", guarantee.neighboring_relation, public=True)
    yield Fact("mechanism", guarantee.mechanism, public=True)
    yield Fact("accountant", guarantee.accountant, public=True)
    if guarantee.noise_multiplier is not None:
        norm = "the norm of an update together with its indicator" if "adaptive_clipping" in settings else "clip norm"
        over = f"(noise over {norm} {guarantee.clip_noise_multiplier:.6g})"
        yield Fact("noise multiplier", f"{guarantee.noise_multiplier:.6g} {over}", public=True)
    if guarantee.l2_sensitivity is not None:
        standing = "exact" if guarantee.sensitivity_exact else "an upper bound"
        value = f"{no_less(guarantee.l2_sensitivity)} × the clip norm, {standing}"
        yield Fact(f"sensitivity of {guarantee.sensitivity_of}", value, public=True)
    if "adaptive_clipping" in settings:
        yield Fact("clip norm", "follows a quantile of the updates' norms, by a noised count in the same sum", public=True)
    elif isinstance(settings.get("clip_norm"), int | float):
        yield Fact("clip norm", f"{settings['clip_norm']:g}", public=True)
    if isinstance(settings.get("expected_cohort_size"), int | float):
        yield Fact("divisor of the sums", f"{settings['expected_cohort_size']:g}", public=True)
    if guarantee.amplified:
        yield Fact("without amplification", f"epsilon {rounded_up(guarantee.unamplified_epsilon)}", public=True)
    if (rho := guarantee.unamplified_zcdp_rho) is not None:
        yield Fact("zero-concentrated DP", f"ρ = {rounded_up(rho)}{zcdp_standing(guarantee)}", public=True)
    if guarantee.setting:
        yield Fact("trust model", guarantee.setting, public=True)


def evaluations(run: RunSummary, most: int) -> list[tuple[str, str, str, str]]:
    """Some of the evaluated rounds: number, accuracy, loss, epsilon spent."""
    rows = [(row["round_index"] + 1, row) for row in some(run.evaluated, most)]
    return [(str(after), f"{row['accuracy']:.2%}", _loss(row), rounded_up(run.epsilon_after(after))) for after, row in rows]


def _loss(row: Any) -> str:
    return "not finite" if row["loss"] is None else f"{row['loss']:.4f}"


def costs(run: RunSummary) -> Iterator[tuple[str, str, str, str]]:
    """Time and traffic of the rounds: what it is, the median of a round, the largest, and the sum."""
    rows, phased = run.rows, [row["phases"] for row in run.rows if row.get("phases")]
    seconds = {words: [row[key] for row in rows if row.get(key) is not None] for key, words in _SECONDS.items()}
    phases = {f"– {words}": [each.get(name, 0.0) for each in phased] for name, words in _PHASES.items()}
    for words, values in {**seconds, **phases}.items():
        if values:
            yield words, _time(median(values)), _time(max(values)), _time(sum(values))
    if sent := [(row["upload_bytes"], row["clients"] or 0) for row in rows if row.get("upload_bytes") is not None]:
        sizes, together = [size for size, _ in sent], [size * clients for size, clients in sent]
        yield "one client sends", _size(median(sizes)), _size(max(sizes)), "–"
        yield "all clients send", _size(median(together)), _size(max(together)), _size(sum(together))


def _time(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:,.1f} min"
    return f"{seconds:,.3g} s" if seconds >= 0.1 else f"{1000 * seconds:,.3g} ms"


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e7 else f"{count / 1000:,.0f} kB"
