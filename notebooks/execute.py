"""Execute the notebooks of this folder in place: ``python notebooks/execute.py [NOTEBOOK…]``.

Each runs from its first cell in a kernel of its own and an empty folder, where a warning is an
error. What is kept is what another run would give again: outputs, but no times, and the digest of
the cells that they come from.
"""

import argparse
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).parent
# A cell whose text hangs on the operating system's randomness, in noise that nobody can repeat.
RANDOM = "random"
_SECONDS = 300
_SETTINGS = {
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    # But for what the kernel's own libraries say when it begins, from Python 3.12 on, and ends.
    "PYTHONWARNINGS": (
        "error,ignore::DeprecationWarning:tornado.ioloop,"
        "ignore::PendingDeprecationWarning:ipykernel.kernelbase"
    ),
}


def notebooks() -> list[Path]:
    """All of this folder."""
    return sorted(HERE.glob("*.ipynb"))


def digest(notebook: Any) -> str:
    """Of the sources of a notebook's cells, in order."""
    cells = "\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells)
    return hashlib.sha256(cells.encode()).hexdigest()


def executed(path: Path) -> Any:
    """A notebook with the outputs of a fresh run of it.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raised, with its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Nobody's own settings of IPython.
        folders = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "HUBBUB_CACHE")
        own = dict.fromkeys(folders, folder)
        # Sockets of the file system: no port is opened.
        local = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        client = NotebookClient(
            notebook, timeout=_SECONDS, coalesce_streams=True, record_timing=False, config=local
        )
        client.startup_timeout = _SECONDS
        client.resources = {"metadata": {"path": folder}}
        client.execute(env={**os.environ, **own, **_SETTINGS})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {
        "hubbub": {"cells": digest(notebook)},
        "kernelspec": kernel,
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    return notebook


def main() -> None:
    """The notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, default=notebooks())
    for path in parser.parse_args().notebooks:
        found = executed(path)
        path.write_text(nbformat.writes(found) + "\n")
        print(path.name, f"{path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
