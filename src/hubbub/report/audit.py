"""The findings of an audit: their files, their charts, and the check that they belong to a run."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from hubbub._util import rounded_down, strict_json
from hubbub._util.checks import open_unit, shown
from hubbub._util.files import make_folder, read, write_atomic
from hubbub.accounting import rounded_up
from hubbub.accounting.statement import no_less
from hubbub.errors import ConfigError, RunFolderError
from hubbub.report.drawing import INK, SERIES, canvas, png, styled
from hubbub.report.summary import RunSummary, escaped, summary

_Found = Mapping[str, Any]
# Where a report looks for the audit of its run: hubbub audit RUN/config.toml --out RUN/audit.
AUDIT = Path("audit", "audit.json")
_LARGEST = 2**27
_MANY = 10**7
# Settings that change nothing that an adversary sees: how a run is computed, where files lie, what is measured.
_IRRELEVANT = {
    "training": {"plan", "nproc", "rank_timeout", "shard", "evaluate_every", "keep_releases", "free_disk", "fairness"},
    "privacy": {"noise", "earlier_runs"},
    "data": {"path"},
    "secagg": {"keys"},
    "heads": {"command", "url", "key", "required"},
}
# Machines differ in the last digits of a sum.
_SAME_EPSILON = 1e-6
_PRESENT, _ABSENT = SERIES[1], SERIES[0]
_ABOVE: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}


def write_audit(folder: Path, name: str, found: _Found) -> None:
    """Write ``audit.json``, ``audit.png`` and ``audit.md`` into a folder."""
    make_folder(folder)
    write_atomic(folder / "audit.json", strict_json.canonical(found))
    # The findings are on disk before a picture can fail.
    with styled():
        made = canvas(8, 6.5)
        above, below = made.subplots(2, 1, height_ratios=(2, 3))
        draw_bounds(above, found)
        draw_scores(below, found)
        write_atomic(folder / "audit.png", png(made, f"Audit of {name}: {found['verdict']}"))
    write_atomic(folder / "audit.md", _markdown(name, found).encode())


def audit_rows(found: _Found) -> list[tuple[str, str, str, str, str]]:
    """A row for each comparison: its name, the stated epsilon, the lower bounds at 95 % and at 1 − 10⁻⁶, and the verdict."""
    return [
        (
            one["what"],
            rounded_up(_infinite(one["stated_epsilon"])),
            rounded_down(one["shown"]["epsilon"], 3),
            rounded_down(one["certain"]["epsilon"], 3),
            "holds" if one["holds"] else "BROKEN",
        )
        for one in found["comparisons"]
    ]


def _infinite(epsilon: float | None) -> float:
    """JSON has no infinity."""
    return math.inf if epsilon is None else epsilon


def _markdown(name: str, found: _Found) -> str:
    stated, epsilon = found["stated"], rounded_up(_infinite(found["stated"]["epsilon"]))
    lines = [
        f"# Audit of {escaped(name)}",
        "",
        f"**{found['sentence']}**",
        "",
        f"Audited: {stated['mechanism']}; ({epsilon}, {no_less(stated['delta'])})-differential privacy "
        f"for each {stated['privacy_unit']} ({stated['neighboring_relation']} relation) over {stated['rounds']} rounds. "
        f"{found['runs']} runs with new keys of noise and cohorts, {found['canaries']} canaries in each, each present with "
        "probability 1/2.",
        "",
        "![lower bounds and the stated epsilon, and the scores of the canaries](audit.png)",
        "",
        "| epsilon | stated, at most | at least, with confidence 95 % | at least, with confidence 1 − 10⁻⁶ | |",
        "|---|---|---|---|---|",
        *("| " + " | ".join(row).replace("BROKEN", "**BROKEN**") + " |" for row in audit_rows(found)),
        "",
        "| test | measured | correct system | |",
        "|---|---|---|---|",
        *(_check(one) for one in found["checks"]),
        "",
        *(f"* {note}" for note in found["notes"]),
        *([""] if found["notes"] else []),
        "A lower bound at 1 − 10⁻⁶ above the stated epsilon means that the system or the accounting is wrong, except with "
        "probability 10⁻⁶. A correct system exceeds each at 95 % in at most one of twenty audits. A lower bound below the "
        "stated epsilon proves nothing: other canaries and tests could show more. A failed test means that the system is not "
        "the stated one, whatever the bounds.",
        "",
        "## Assumptions of the bounds",
        "",
        *(f"* {one['what']}: {one['certain']['statement']}" for one in found["comparisons"]),
        "",
    ]
    return "\n".join(lines)


def _check(one: _Found) -> str:
    low, high = one["low"], one["high"]
    allowed = f"{high:.4g}" if low == high else f"at most {high:.4g}" if not low else f"{low:.4g} to {high:.4g}"
    return f"| {one['name']} | {one['value']:.4g} | {allowed} | {'passed' if one['passed'] else '**FAILED**'} |"


def draw_bounds(axes: Any, found: _Found) -> str:
    """Draw each lower bound and the stated epsilon; returns the bounds in words."""
    comparisons = found["comparisons"][::-1]
    values = [1e-9]
    for height, one in enumerate(comparisons):
        likely, certain, stated = one["shown"]["epsilon"], one["certain"]["epsilon"], one["stated_epsilon"]
        axes.barh(height, likely, height=0.5, color=_ABSENT, alpha=0.35, label="at least (95 %)")
        axes.barh(height, certain, height=0.25, color=_ABSENT, label="at least (1 − 10⁻⁶)")
        values += [likely, certain]
        if stated is not None:
            values.append(stated)
            axes.plot([stated] * 2, [height - 0.35, height + 0.35], color=INK, linewidth=2.5, label="stated")
            axes.annotate(rounded_up(stated), (stated, height), xytext=(5, 0), textcoords="offset points", va="center")
    words = [one["what"].replace(", ", ",\n").replace(": ", ":\n") for one in comparisons]
    axes.set_yticks(range(len(comparisons)), words)
    axes.set(xlim=(0, max(values) * 1.12), ylim=(-0.6, len(comparisons) - 0.4))
    axes.set_xlabel(f"epsilon at delta = {no_less(found['stated']['delta'])}")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), **_ABOVE)
    said = "; ".join(f"{what}: at least {shown}" for what, _, shown, _, _ in audit_rows(found))
    return f"Lower bounds on epsilon: {said}"


def draw_scores(axes: Any, found: _Found) -> str:
    """Draw the scores of the canaries and their claimed distributions; returns in words what is drawn."""
    present, absent, means = (np.asarray(found["scores"][key], dtype=np.float64) for key in ("present", "absent", "means"))
    everything = np.concatenate([present, absent])
    # Scores of a broken system may be far out.
    low = min(float(everything.min()) - 0.5, -4.0)
    high = max(float(everything.max()) + 0.5, float(means.max()) + 4.0)
    x, bins = np.linspace(low, high, 500), np.linspace(low, high, 41)
    law = f"N({means[0]:.3g}, 1)" if float(np.ptp(means)) < 1e-9 else "by its rounds"
    for scores, mean, color, label, claimed in (
        (absent, np.zeros(1), _ABSENT, "absent", "N(0, 1)"),
        (present, means, _PRESENT, "present", law),
    ):
        axes.hist(scores, bins=bins, density=True, color=color, alpha=0.35, label=f"{len(scores):,} {label}")
        density = np.exp(-np.square(x[:, None] - mean) / 2).mean(axis=1) / math.sqrt(2 * math.pi)
        axes.plot(x, density, color=color, label=f"claimed if {label}: {claimed}")
    axes.set(xlabel="score, in standard deviations of the noise", ylabel="density")
    axes.legend(**_ABOVE)
    return "Scores of the canaries and their claimed distributions"


# The fields of ``audit.json`` that a report reads; other fields are ignored.
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Epsilon = Annotated[_Finite, Field(ge=0)]


class _Stated(BaseModel):
    epsilon: _Epsilon | None
    delta: float
    rounds: Annotated[int, Field(ge=1)]
    mechanism: str
    privacy_unit: str
    neighboring_relation: str


class _Bound(BaseModel):
    epsilon: _Epsilon


class _Comparison(BaseModel):
    what: str
    stated_epsilon: _Epsilon | None
    holds: bool
    shown: _Bound
    certain: _Bound


class _Checked(BaseModel):
    name: str
    value: _Finite
    passed: bool


_Scored = Annotated[list[_Finite], Field(min_length=1, max_length=_MANY)]


class _Scores(BaseModel):
    present: _Scored
    absent: _Scored
    means: _Scored


class _Audit(BaseModel):
    sentence: str
    verdict: str
    stated: _Stated
    settings: dict[str, dict[str, Any]]
    comparisons: list[_Comparison]
    checks: list[_Checked]
    notes: list[str]
    scores: _Scores


def read_audit(path: Path) -> _Found:
    """The findings of ``hubbub audit``, from ``audit.json`` or its folder."""
    file = path / "audit.json" if path.is_dir() else path
    try:
        found: _Found = strict_json.loads(read(file, at_most=_LARGEST))
        open_unit("stated.delta", _Audit.model_validate(found, strict=True).stated.delta)
    except OSError as error:
        raise ConfigError(f"--audit {file}: cannot be read ({error.strerror}); name that of 'hubbub audit'") from error
    except (ValueError, TypeError, OverflowError) as error:
        what = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"--audit {file}: is not an audit of this version ({what}); make it with 'hubbub audit'") from error
    return found


def audited(folder: Path, named: Path | None = None) -> RunSummary:
    """The summary of a run with the findings of its audit: the named one, or the one in its folder if there is one."""
    there = named is not None or os.path.lexists(folder / AUDIT)
    return with_audit(summary(folder), read_audit(named or folder / AUDIT)) if there else summary(folder)


def with_audit(run: RunSummary, found: _Found) -> RunSummary:
    """The run with the findings of an audit."""
    for what, of_run, of_audit in _differences(run, found):
        there, here = ("not set" if value is None else shown(value) for value in (of_audit, of_run))
        raise RunFolderError(
            f"{run.name}: the audit is of another run: {what} is {there} there and {here} here; audit this "
            "one with 'hubbub audit RUN/config.toml --out RUN/audit'"
        )
    return replace(run, audit=found)


def _differences(run: RunSummary, found: _Found) -> Iterator[tuple[str, Any, Any]]:
    """Each difference: its name, the value of the run, the value of the audit."""
    stated, rounds, promise = found["stated"], found["stated"]["rounds"], run.recorded.promise
    if promise.mechanism is None:
        yield "epsilon", "infinite", rounded_up(_infinite(stated["epsilon"]))
        return
    if rounds > promise.rounds:
        yield "rounds", promise.rounds, rounds
        return
    of_run = replace(promise, earlier=()).after(rounds, promise.delta)
    for name in ("delta", "privacy_unit", "neighboring_relation", "mechanism"):
        if stated[name] != getattr(of_run, name):
            yield name.replace("_", " "), getattr(of_run, name), stated[name]
    mine, theirs = run.settings, found["settings"]
    for section in sorted({*mine, *theirs}):
        here, there = mine.get(section, {}), theirs.get(section, {})
        for name in sorted({*here, *there} - _IRRELEVANT.get(section, set())):
            if here.get(name) != there.get(name):
                yield f"{section}.{name}", here.get(name), there.get(name)
    if not math.isclose(_infinite(stated["epsilon"]), of_run.epsilon, rel_tol=_SAME_EPSILON):
        yield f"the epsilon of {rounds} rounds", of_run.epsilon, stated["epsilon"]
