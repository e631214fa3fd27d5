"""Runs tests against copies of the package: one process that has every large library, and a fork of it for each copy.

It is started with a folder for what is compiled. A request is a line of JSON with the copy's ``folder`` and a ``test``; the
answer is a line with the ``outcome`` and the ``output``. The outcomes: ``passed``; ``failed``, by an assertion or an error of
the package; ``broken``, by an error that says that the copy or the test is no Python that runs; ``hung``.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
PATIENCE = 120
# All that tests import, but for the package itself, and what pytest wants to load by itself.
LIBRARIES = (
    "cryptography.hazmat.primitives.ciphers", "dp_accounting.pld.privacy_loss_distribution", "flwr.clientapp",
    "flwr.serverapp.strategy", "gmpy2", "matplotlib.figure", "mpmath", "numpy", "pytest", "rich.console", "safetensors.torch",
    "scipy.signal", "scipy.stats", "torch._dynamo", "torch.func", "typer.main",
)  # fmt: skip
# What a mistake in the copy itself raises, whatever is tested.
NO_PROGRAM = (NameError, ImportError, SyntaxError)


class Watcher:
    """Remembers by what tests fail."""

    def __init__(self) -> None:
        self.broken = False
        self.ran = 0

    def pytest_runtest_makereport(self, item: object, call: object) -> None:
        self.ran += call.when == "call"
        if call.excinfo is not None and isinstance(call.excinfo.value, NO_PROGRAM):
            self.broken = True

    def pytest_collectreport(self, report: object) -> None:
        if report.failed:
            self.broken = True


def tested(folder: str, test: str, output: Path) -> str:
    """In the child: the outcome of a test of the copy."""
    import pytest

    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join((folder, str(HERE)))
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    watcher = Watcher()
    options = ["-x", "-q", "--no-header", "-p", "no:xdist", "-p", "no:cacheprovider", "--rootdir", str(HERE.parent)]
    status = pytest.main([*options, str(HERE / test)], plugins=[watcher])
    # The child ends without what an interpreter does at its end.
    sys.stdout.flush()
    import hubbub

    if Path(hubbub.__file__).parent.parent != Path(folder):
        return "broken"
    if status == pytest.ExitCode.OK and watcher.ran:
        return "passed"
    return "failed" if status == pytest.ExitCode.TESTS_FAILED and not watcher.broken else "broken"


def answered(folder: str, test: str) -> dict[str, str]:
    """The outcome of a test in a child of its own, in a session of its own, so that nothing of it goes on."""
    with tempfile.TemporaryDirectory() as scratch:
        output, outcome = Path(scratch, "output"), Path(scratch, "outcome")
        child = os.fork()
        if not child:
            os.setsid()
            try:
                outcome.write_text(tested(folder, test, output))
            except BaseException:  # noqa: BLE001 # whatever it is, it is told with the output
                outcome.write_text("broken")
                with output.open("a") as file:
                    traceback.print_exc(file=file)
            finally:
                os._exit(0)
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
        signal.alarm(PATIENCE)
        os.waitpid(child, 0)
        signal.alarm(0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        text = output.read_text(errors="replace") if output.exists() else ""
        return {"outcome": outcome.read_text() if outcome.exists() else "hung", "output": text[-6000:]}


def main() -> None:
    """Answer requests until there are none."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    sys.dont_write_bytecode, sys.pycache_prefix = False, sys.argv[1]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.argv[1]
    sys.path.insert(0, str(HERE))
    # What is loaded is not looked through again in each child.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(answered(request["folder"], request["test"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
