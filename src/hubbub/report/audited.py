"""An audit beside the run that it speaks of: read, checked, and refused where it is of other settings."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hubbub import strict_json
from hubbub._checks import finite, integer, non_negative, open_unit, shown, table
from hubbub.accounting import rounded_up
from hubbub.errors import ConfigError, RunFolderError
from hubbub.files import read
from hubbub.report.told import RunTold

__all__ = ["AUDIT", "read_audit", "with_audit"]

_Sections = Mapping[str, Mapping[str, Any]]
# Where an audit lies in the folder of its run, if somebody put it there: hubbub audit RUN/config.toml --out RUN/audit.
AUDIT = Path("audit", "audit.json")
_LARGEST = 2**27
_MANY = 10**7
# What says how a run is computed, where things lie, or what is looked at: no adversary sees a difference.
_OF_NO_MATTER = {
    "training": {"plan", "workers", "evaluate_every", "keep_releases", "fairness"},
    "privacy": {"noise", "earlier_runs"},
    "data": {"path"},
    "secagg": {"keys"},
}
# Two machines add up differently in the last digits.
_ALIKE = 1e-6


def read_audit(path: Path) -> Mapping[str, Any]:
    """The findings of ``hubbub audit``, from ``audit.json`` or the folder in which it lies.

    Raises:
        ConfigError: The file is missing, or is no audit.
    """
    file = path / "audit.json" if path.is_dir() else path
    try:
        found = strict_json.loads(read(file, at_most=_LARGEST))
        _require_audit(found)
    except OSError as error:
        raise ConfigError(
            f"--audit {file}: cannot be read ({error.strerror}); name the audit.json of 'hubbub audit'"
        ) from error
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"--audit {file}: is no audit of this version ({what}); make it with 'hubbub audit'") from error
    answer: Mapping[str, Any] = found
    return answer


def with_audit(run: RunTold, found: Mapping[str, Any]) -> RunTold:
    """The run with what an audit found.

    Raises:
        RunFolderError: The audit is of other settings; the first difference is named.
    """
    for what, of_run, of_audit in _differences(run, found):
        raise RunFolderError(
            f"{run.name}: the audit is of another run: {what} is {_said(of_audit)} there and {_said(of_run)} here; audit this "
            "one with 'hubbub audit RUN/config.toml --out RUN/audit'"
        )
    return replace(run, audit=found)


def _differences(run: RunTold, found: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What is not the same: in which words, of the run, of the audit."""
    stated, rounds, promise = found["stated"], found["stated"]["rounds"], run.recorded.promise
    if promise.mechanism is None:
        yield "epsilon", "infinite", rounded_up(stated["epsilon"])
        return
    if rounds > promise.rounds:
        yield "rounds", promise.rounds, rounds
        return
    of_run = replace(promise, earlier=()).after(rounds, promise.delta)
    for name in ("delta", "privacy_unit", "neighboring_relation", "mechanism"):
        if stated[name] != getattr(of_run, name):
            yield name.replace("_", " "), getattr(of_run, name), stated[name]
    yield from _other_settings(run.settings, found["settings"])
    if not math.isclose(stated["epsilon"], of_run.epsilon, rel_tol=_ALIKE):
        yield f"the epsilon of {rounds} rounds", of_run.epsilon, stated["epsilon"]


def _other_settings(mine: _Sections, theirs: _Sections) -> Iterator[tuple[str, Any, Any]]:
    """Settings that are not the same, but for those of no matter."""
    for section in sorted({*mine, *theirs}):
        here, there = mine.get(section, {}), theirs.get(section, {})
        for name in sorted({*here, *there} - _OF_NO_MATTER.get(section, set())):
            if here.get(name) != there.get(name):
                yield f"{section}.{name}", here.get(name), there.get(name)


def _said(value: object) -> str:
    return "not set" if value is None else shown(value)


def _require_audit(found: Any) -> None:
    """Refuse what is not of the form that ``hubbub audit`` writes.

    Raises:
        TypeError: Something is of another kind.
        ValueError: A number is out of its range.
        KeyError: Something is missing.
    """
    _require_stated(table("stated", table("the file", found)["stated"]))
    for name in ("sentence", "verdict"):
        _text(name, found[name])
    for section, values in table("settings", found["settings"]).items():
        table(f"settings.{section}", values)
    for one in _list("comparisons", found["comparisons"]):
        _require_comparison(table("comparisons", one))
    for one in _list("checks", found["checks"]):
        _require_check(table("checks", one))
    for note in _list("notes", found["notes"]):
        _text("notes", note)
    _require_scores(table("scores", found["scores"]))


def _require_stated(stated: Mapping[str, Any]) -> None:
    non_negative("stated.epsilon", stated["epsilon"])
    open_unit("stated.delta", stated["delta"])
    integer("stated.rounds", stated["rounds"], at_least=1)
    for name in ("mechanism", "privacy_unit", "neighboring_relation"):
        _text(f"stated.{name}", stated[name])


def _require_scores(scores: Mapping[str, Any]) -> None:
    for name in ("present", "absent", "means"):
        values = _list(f"scores.{name}", scores[name])
        if not 0 < len(values) < _MANY:
            raise ValueError(f"scores.{name} has {len(values)} numbers")
        for value in values:
            finite(f"scores.{name}", value)


def _require_comparison(one: Mapping[str, Any]) -> None:
    _text("what", one["what"])
    if one["stated_epsilon"] is not None:
        non_negative("stated_epsilon", one["stated_epsilon"])
    if not isinstance(one["holds"], bool):
        raise TypeError(f"holds = {shown(one['holds'])}: must be true or false")
    for name in ("shown", "certain"):
        non_negative(f"{name}.epsilon", table(name, one[name])["epsilon"])


def _require_check(one: Mapping[str, Any]) -> None:
    _text("name", one["name"])
    finite("value", one["value"])
    if not isinstance(one["passed"], bool):
        raise TypeError(f"passed = {shown(one['passed'])}: must be true or false")


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is a {type(value).__name__}, not a list")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}, not a text")
    return value
