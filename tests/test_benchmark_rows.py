"""The scripts in benchmarks/ fail where a promise is missed, and nowhere else."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).parent.parent / "benchmarks" / "_runner.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = spec_from_file_location("_runner", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, *rows: Any, flags: tuple[str, ...] = ()) -> int:
    monkeypatch.setattr("sys.argv", ["script", *flags])
    with pytest.raises(SystemExit) as stop:
        runner.main("A script.", lambda _: rows)
    return stop.value.code


@pytest.mark.parametrize(
    ("goal", "good", "met", "fails"),
    [
        (None, True, "-", 0),
        (0.5, True, "yes", 0),
        (1.0, True, "no", 1),
        # A worse answer than promised is missed, whether or not a ratio was promised, too.
        (None, False, "no", 1),
        (0.5, False, "no", 1),
    ],
)
def test_a_ratio_is_shown_always_and_fails_where_more_was_promised(
    runner: ModuleType,
    goal: float | None,
    good: bool,
    met: str,
    fails: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row, kept = runner.Row("one", 5.0, 4.0, goal, good=good), runner.Row("another", 1.0, 9.0, 2.0)
    assert status(runner, monkeypatch, row, kept) == fails
    shown = capsys.readouterr().out.splitlines()[1].split()
    assert shown == ["one", "5", "4", "CPU", "seconds", "0.8", "-" if goal is None else f"{goal:g}", met, "no"]
    assert status(runner, monkeypatch, row, kept, flags=("--json",)) == fails
    first, second = json.loads(capsys.readouterr().out)
    assert (first["ratio"], first["goal"], first["met"]) == (0.8, goal, {"-": None, "yes": True, "no": False}[met])
    assert second["met"] is True
