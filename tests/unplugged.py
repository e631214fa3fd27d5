"""A machine without data and without a network, and one whose network has a few files."""

import io
import urllib.error
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, without a folder of data, and without a network."""

    def unreachable(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network here")

    monkeypatch.delenv("HUBBUB_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUBBUB_DATA", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    return tmp_path / "home"


def serve(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> list[str]:
    """The network, with these files; gives what was asked for."""
    asked: list[str] = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(files[address.rpartition("/")[2]])

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked
