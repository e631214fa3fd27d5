"""Peers that have an environment of their own: made when asked for, and driven one round at a time."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

HERE = Path(__file__).parent
CONSTRAINTS = HERE / "peers.txt"
REQUIREMENTS = ("torch==2.13.0", "pfl[pytorch]==0.6.0", "flwr[simulation]==1.41.0")
DEFAULT_FOLDER = HERE.parent / ".venv-peers"
# One thread, our scripts' modules, and nothing that leaves this machine.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Round:
    """What one round of federated averaging cost a side, in all its processes, and the test accuracy after it."""

    cpu_seconds: float
    wall_seconds: float
    accuracy: float


@dataclass(frozen=True)
class Environment:
    """The folder of a virtual environment with the peers."""

    folder: Path

    @property
    def installed(self) -> bool:
        """Whether it holds the versions that ``peers.txt`` names."""
        made = self.folder / CONSTRAINTS.name
        return made.is_file() and made.read_bytes() == CONSTRAINTS.read_bytes()

    def install(self) -> None:
        """Make the environment, anew where it holds other versions; 1.4 GB, from the package index that pip knows."""
        if self.installed:
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder], check=True)
        pip = [self.folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", CONSTRAINTS, *REQUIREMENTS], check=True, stdout=sys.stderr)
        shutil.copy(CONSTRAINTS, self.folder)


class Peer:
    """A running peer.

    Args:
        environment: Where it is installed.
        module: ``_peer_pfl`` or ``_peer_flower``.
        arguments: Of its ``main``: the file of the work first.
    """

    def __init__(self, environment: Environment, module: str, *arguments: str) -> None:
        self._module = module
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 # open for as long as the process
        # Not as __main__: what Flower sends to its actors must be importable there.
        command = [environment.folder / "bin" / "python", "-c", f"import {module}; {module}.main()", *arguments]
        self._process = subprocess.Popen(
            command,
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def round(self) -> Round:
        """Have it do one round.

        Raises:
            SystemExit: It ended instead: with the last that it said.
        """
        try:
            print(file=self._process.stdin, flush=True)
            return Round(**json.loads(self._process.stdout.readline()))
        except (BrokenPipeError, json.JSONDecodeError) as error:
            self._process.wait()
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{self._module} ended with status {self._process.returncode}:\n{said}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        """End it, and wait until all that it started has ended."""
        self._process.communicate()
        self._log.close()
