"""``hubbub kernel`` builds what this machine can have, says why it cannot have the rest, and deletes it all again.

Tried on two kernels of one function each: the answer of one is right, and the other is for another machine.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import test_compiled
from hubbub.cli import completing, doctor, kernels, main
from hubbub.compiled import Gain
from hubbub.errors import ConfigError
from kernel_caches import kernels_in
from refusals import output
from test_compiled import needs_a_compiler

ELSEWHERE = "the foreign kernel is for Linux on pdp11"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache; kernels named right, foreign, and absent, whose module asks for a library that nobody has."""
    monkeypatch.delenv("CC", raising=False)
    right, foreign = ModuleType("right_kernel"), ModuleType("foreign_kernel")
    right.KERNEL = test_compiled.kernel(tmp_path, name="right")  # type: ignore[attr-defined]
    right.measured = lambda: [Gain("an answer", 2.0, 3000.0)]  # type: ignore[attr-defined]
    foreign.KERNEL = test_compiled.kernel(tmp_path, name="foreign", machines=("pdp11",))  # type: ignore[attr-defined]
    for module in (right, foreign):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    modules = {"right": "right_kernel", "foreign": "foreign_kernel", "absent": "a_kernel_that_nobody_has"}
    monkeypatch.setattr(kernels, "_MODULES", modules)
    monkeypatch.setattr(kernels, "NAMES", tuple(modules))
    with kernels_in(tmp_path / "cache", monkeypatch):
        yield tmp_path / "cache"


def status(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["kernel", *words])
    return int(stop.value.code or 0), capsys.readouterr().out


@needs_a_compiler
def test_one_that_cannot_be_built_does_not_stop_the_others(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, text = status(capsys)
    (path,) = cache.glob("kernel/*")
    first, gain, foreign, absent, last = text.splitlines()
    assert (done, first) == (0, f"Wrote {path}")
    assert gain == "  an answer: 2.0 µs, 3,000.0 µs without, 1500.0 times as fast"
    assert foreign.startswith("No foreign kernel: this machine is")
    assert foreign.endswith(ELSEWHERE)
    assert absent == "No absent kernel: No module named 'a_kernel_that_nobody_has'"
    assert "HUBBUB_KERNEL=off" in last


@needs_a_compiler
def test_as_json_each_has_a_path_and_gains_or_a_refusal(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, text = status(capsys, "foreign", "right", "foreign", "--json")
    foreign, right = json.loads(text)["kernels"]
    assert done == 0
    refusal = foreign.pop("refusal")
    assert refusal.endswith(ELSEWHERE)
    assert foreign == {"name": "foreign", "path": None, "gains": []}
    (path,) = cache.glob("kernel/*")
    gains = [{"what": "an answer", "kernel_us": 2.0, "without_us": 3000.0}]
    assert right == {"name": "right", "path": str(path), "gains": gains, "refusal": None}


def test_the_status_is_1_where_none_of_those_asked_for_is_built(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done, text = status(capsys, "foreign", "absent")
    assert done == 1
    assert [line.partition(":")[0] for line in text.splitlines()] == ["No foreign kernel", "No absent kernel"]
    done, text = status(capsys, "absent", "--json")
    assert (done, json.loads(text)["kernels"][0]["path"]) == (1, None)


@needs_a_compiler
def test_those_named_are_removed_or_all(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status(capsys, "right")
    (path,) = cache.glob("kernel/*")
    assert output(capsys, ["kernel", "foreign", "--remove"]) == f"There is none in {cache / 'kernel'}\n"
    # What a library that was uninstalled has left is removed, too.
    left = path.with_name("absent-x86_64-0.so")
    shutil.copy(path, left)
    assert json.loads(output(capsys, ["kernel", "--remove", "--json"])) == {"removed": [str(path), str(left)]}
    assert list(cache.glob("kernel/*")) == []


def test_a_kernel_that_there_is_not_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--remove"]):
        with pytest.raises(SystemExit) as stop:
            main(["kernel", "encription", *more])
        assert stop.value.code == 2
        told = capsys.readouterr().err
        assert "kernel = 'encription': must be one of encryption" in told
        assert "did you mean 'encryption'?" in told


@needs_a_compiler
def test_the_doctor_says_of_each_whether_it_is_used(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status(capsys, "right")
    (path,) = cache.glob("kernel/*")
    found = [(finding.name, finding.state, finding.text) for finding in doctor._kernels()]
    unbuilt = "not built: 'hubbub kernel foreign' builds it, where the machine can have it"
    assert found == [("right kernel", "good", f"in use: {path}"), ("foreign kernel", "note", unbuilt)]
    monkeypatch.setenv("HUBBUB_KERNEL", "off")
    assert {(finding.state, finding.text) for finding in doctor._kernels()} == {("note", "not used: HUBBUB_KERNEL is off")}
    monkeypatch.setenv("HUBBUB_KERNEL", "of")
    with pytest.raises(ConfigError, match="HUBBUB_KERNEL = 'of'"):
        list(doctor._kernels())


def test_names_of_kernels_are_completed() -> None:
    assert "encryption" in completing.kernels("")
    assert completing.kernels("enc") == ["encryption"]
    assert completing.kernels("x") == []


def test_each_kernel_of_the_package_bears_the_name_under_which_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gmpy2")
    explained = output(capsys, ["kernel", "--help"])
    assert all(name in explained for name in kernels.NAMES)
    assert [name for name, _ in kernels.standings()] == list(kernels.NAMES)
    for name, module in kernels._MODULES.items():
        kernel = sys.modules[module].KERNEL
        assert kernel.name == name
        assert kernel.source.suffix == ".c"
        assert kernel.source.is_file()
