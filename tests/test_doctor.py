"""The doctor finds a machine that is well to be well, and says what is wrong with one that is not."""

import json
import os
from importlib.metadata import PackageNotFoundError, version

import pytest

from hubbub.cli import doctor as module
from hubbub.cli import main


def looked(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The status, and the findings by name."""
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] == (stop.value.code == 0)
    return int(stop.value.code or 0), {finding["name"]: finding for finding in answer["findings"]}


def test_this_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = looked(capsys)
    assert status == 0, found
    assert {"libraries", "processor", "randomness", "sampler", "disk"} <= found.keys()
    assert version("torch") in found["libraries"]["text"]


def test_randomness_that_repeats_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "urandom", lambda count: b"\x17" * count)
    status, found = looked(capsys)
    assert status == 1
    assert found["randomness"]["state"] == "bad"


def test_a_disk_that_only_says_that_it_wrote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(module.time, "perf_counter", lambda: 0.0)
    assert [finding.state for finding in module._disk()] == ["bad"]


def test_a_part_that_breaks_hides_no_other(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("no room for a ledger")

    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", refused)
    status, found = looked(capsys)
    assert status == 1
    assert "no room for a ledger" in found["disk"]["text"]
    assert found["sampler"]["state"] == "good"


def test_what_is_not_installed_is_a_note_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(name: str) -> str:
        if name == "gmpy2":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(module, "version", some)
    found = {finding.name: finding for finding in module._versions()}
    assert found["gmpy2"].state == "note"
    assert "hubbub[secagg]" in found["gmpy2"].text
    assert list(module._encryption()) == []


@pytest.mark.parametrize(("where", "name"), [("textbook", "encrypt"), ("paillier.PrivateKey", "decrypt")])
def test_encryption_that_computes_wrongly_is_found(where: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gmpy2")
    assert [finding.state for finding in module._encryption()] == ["good"]
    monkeypatch.setattr(f"hubbub.secagg.{where}.{name}", lambda *_: [14, 5])
    assert [finding.state for finding in module._encryption()] == ["bad"]
