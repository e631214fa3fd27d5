"""What runs on a GPU runs on the one that is there, or else on one that is pretended, in a process that knows no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pretended_gpu import library

CASES = Path(__file__).with_name("gpu_cases.py")
# Torch must find the library's GPU when it is imported.
PROGRAM = """
import ctypes, sys
[ctypes.CDLL(library) for library in sys.argv[1:2] if library]
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_what_runs_on_a_gpu(tmp_path: Path) -> None:
    found = None if torch.cuda.is_available() else library(tmp_path)
    if found is None and not torch.cuda.is_available():
        pytest.skip("needs a GPU, or a C++ compiler for one that is pretended")
    inside = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    command = [sys.executable, "-c", PROGRAM, str(found or ""), str(CASES), f"--basetemp={tmp_path / 'cases'}"]
    done = subprocess.run(command, env=inside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
