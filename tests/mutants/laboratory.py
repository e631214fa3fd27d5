"""Copies of the package with one change each, and what a test says of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import hubbub
from mutants.mutant import Mutant

PACKAGE = Path(hubbub.__file__).parent
HERE = Path(__file__).parent


class Laboratory:
    """Tries mutants, one at a time; a context manager."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._tried = scratch, 0

    def __enter__(self) -> "Laboratory":
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "server.py"), str(self._scratch / "compiled")]
        # What libraries print while they load belongs to nobody.
        self._server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.communicate()

    def outcome(self, mutant: Mutant | None, test: str) -> tuple[str, str]:
        """What a test says of a copy, and what it printed; without a mutant the copy is the package as it is."""
        self._tried += 1
        # Always the same folder, and with the times of the files, so that what is unchanged is compiled once.
        folder = self._scratch / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(PACKAGE, folder / "hubbub", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            file = folder / "hubbub" / mutant.file
            file.write_text(changed(mutant))
            # A time that no other change of the file has: by it and the length a compiled form is taken for good.
            os.utime(file, (self._tried, self._tried))
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps({"folder": str(folder), "test": test}) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return answer["outcome"], answer["output"]


def changed(mutant: Mutant) -> str:
    """The text of the file with the change."""
    text = (PACKAGE / mutant.file).read_text()
    found = text.count(mutant.old)
    assert found == 1, f"{mutant.what}: {mutant.file} holds {found} times {mutant.old!r}"
    return text.replace(mutant.old, mutant.new)
