"""The doctor finds a machine that is well to be well, and says what is wrong with one that is not."""

import json
import os
from importlib.metadata import version

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
    assert (status, found["randomness"]["state"]) == (1, "bad")


def test_a_disk_that_only_says_that_it_wrote_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(module.time, "perf_counter", lambda: 0.0)
    assert [state for _, state, _ in module._disk()] == ["bad"]


@pytest.mark.parametrize(("where", "name"), [("textbook", "encrypt"), ("paillier.PrivateKey", "decrypt")])
def test_encryption_that_computes_wrongly_is_found(where: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gmpy2")
    assert [state for _, state, _ in module._encryption()] == ["good"]
    monkeypatch.setattr(f"hubbub.secagg.{where}.{name}", lambda *_: [14, 5])
    assert [state for _, state, _ in module._encryption()] == ["bad"]
