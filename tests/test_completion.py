"""What a shell offers for an unfinished word, and the files that ``hubbub new`` writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.cli import main

# A child of bash finds out that it is one; the last word keeps bash from becoming the child.
BASH = """
hubbub --install-completion && source ~/.bashrc && cd "$PLACE" || exit 1
tried() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _hubbub_completion hubbub
    echo "${COMPREPLY[*]}"
}
tried hubbub tr
tried hubbub train ./ex
tried hubbub verify ''
tried hubbub factorize ban
tried hubbub compare --plot any
exit 0
"""


# Settings and the folders of two runs.
FILES = ("examples/a.toml", "examples/b.txt", "runs/one/config.toml", "runs/one/ledger.jsonl", "runs/two/ledger.jsonl")


@pytest.mark.slow
def test_bash_completes_commands_settings_and_runs(tmp_path: Path) -> None:
    for name in (*FILES, ".hidden/c.toml"):
        (tmp_path / "place" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "place" / name).touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path, "PLACE": str(tmp_path / "place")}
    told = subprocess.run(["bash", "-c", BASH], env=environment, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[2:] == [
        "train",
        "./examples/a.toml",
        "runs/one runs/two",
        "banded-toeplitz banded banded-inverse",
        # Of what has no list of its own bash offers files by itself.
        "",
    ]


@pytest.mark.parametrize(("name", "example"), [("run.toml", "digits.toml"), ("my.py", "own_model.py")])
def test_a_new_file_is_the_example_and_no_file_is_overwritten(
    name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["new", name])
    text = (Path(__file__).parent.parent / "examples" / example).read_text()
    assert (tmp_path / name).read_text() == text.replace("examples/own_model.py", name)
    assert f"Try it: {'hubbub train' if name.endswith('toml') else 'python'} {name}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["new", name])
    assert "exists already" in capsys.readouterr().err
