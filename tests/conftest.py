"""Where reference values and data sets are, a folder for commands, and which tests may be skipped."""

import json
import logging
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent
# No property depends on how busy a machine is.
settings.register_profile("hubbub", deadline=None)
settings.load_profile("hubbub")
# Tests that look at pictures, beside those whose names say so.
LOOKED_AT = ("test_docs", "test_headlines", "test_notebooks", "test_report_page", "test_sweep")
# Files whose tests have many cases of one code, of which about every n-th is tried for each commit.
EVERY = {
    2: "adaptive_clipping alternatives bad_numbers budget_ends calibrate central docs_site extend_command "
    "floating_point flower_defects flower_paillier flower_private_evaluation full_disk headlines malformed mixtures "
    "moments noise_shares paillier_requests power_loss private_evaluation random_cohorts ranks rdp release release_folder "
    "secure_noise sensitivity sentences threshold toeplitz verification wrong_paths",
    3: "audit bad_clients banded encrypted_training examples extending factorize flower_replies ledger "
    "paillier_parallel report_page sweep wrong_settings",
    5: "accounting_page audit_runs balls_in_bins blt charge cli composition crash dense_optimal epsilon_laws "
    "execution_plans gaussian guarantee interruptions neighbours optimized own_classes planning selection "
    "stack_neighbours strategies streaming trees units_that_fail",
}
# In continuous integration a skip for any other reason fails the run.
SKIPS_ALLOWED_IN_CI = ("needs a GPU",)


GOOD = """
training = { rounds = 2, cohort_size = 2 }
privacy = { mode = "dp-fedavg", noise_multiplier = 1.0 }
data = { name = "digits", clients = 10 }
"""
CORRELATED = """
training = { rounds = 4, cohort_size = 2 }
privacy = { mode = "dp-ftrl", noise_multiplier = 1.0 }
participation.min_separation = 2
data = { name = "digits", clients = 10 }
"""


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    # What tests remember is not the user's; processes that they start share it.
    remembered = tempfile.TemporaryDirectory(prefix="hubbub-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(remembered.cleanup)
    os.environ.setdefault("HUBBUB_CACHE", remembered.name)
    # Flower asks for nothing over a network.
    os.environ |= dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0")
    os.environ |= dict.fromkeys(("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"), "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tests in some files `make test` takes about every n-th case; `make stress` takes all."""
    seen = Counter[str]()
    for item in items:
        test, stem = item.nodeid.partition("[")[0], item.path.stem.removeprefix("test_")
        n = next((n for n, files in EVERY.items() if stem in files.split()), 1)
        if not item.get_closest_marker("slow"):
            # By the golden ratio, so that no value of a parameter is left out each time. Two data sets draw images first.
            if seen[test] * 0.618034 % 1 >= 1 / n or stem in ("patches", "scattering"):
                item.add_marker("slow")
            seen[test] += 1


@pytest.fixture(autouse=True)
def _blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time of a short run: files that look at none get blank ones."""
    if request.node.path.stem not in LOOKED_AT and not re.search("picture|drawn|plots", request.node.name):
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", _blank)


@pytest.fixture(autouse=True)
def _flower_log() -> None:
    """Each test finds Flower's log as it is in a process of its own, whatever the tests before it made of it."""
    log = logging.getLogger("flwr")
    log.setLevel(logging.INFO)
    log.propagate = True


@pytest.fixture
def quiet() -> None:
    """Flower's log has critical lines alone."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only where it knows whose they are."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)


@contextmanager
def at_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands run in a folder, and leave the process as they found it."""
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.chdir(folder)
    # Names of own code are looked up in the current folder too, which a command adds here.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("HUBBUB_DEBUG", raising=False)
    monkeypatch.delenv("HUBBUB_DATA", raising=False)
    yield
    sys.modules.pop("own_code", None)
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own with good configs, as the current one."""
    with at_work(tmp_path, monkeypatch):
        Path("good.toml").write_text(GOOD)
        Path("correlated.toml").write_text(CORRELATED)
        Path("pattern.toml").write_text(CORRELATED.replace("participation.min_separation = 2\n", ""))
        yield tmp_path


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own the model of malformed.place may learn; afterwards own code is sought where it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("malformed.place.Line.may_learn", True)
    monkeypatch.setattr(sys, "path", list(sys.path))


def _blank(figure: object, file: Any, **how: Any) -> None:
    picture = how.get("format") or Path(str(file)).suffix[1:]
    content = f"<{picture}></{picture}>" if picture == "svg" else b"\x89PNG"
    if isinstance(file, str | Path):
        Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        file.write(content)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI"):
        reason = str(call.excinfo.value) if call.excinfo else ""
        if not any(allowed in reason for allowed in SKIPS_ALLOWED_IN_CI):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped where it must run: {reason}"


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """A function that ends with an error, whatever it is given."""

    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def oracle(name: str) -> dict[str, Any]:
    """Reference values, with their source inside."""
    return json.loads((HERE / "data" / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with mnist.npz and the published files, for tests that need real data."""
    places = [os.environ.get("HUBBUB_DATA"), HERE.parent.parent / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "mnist.npz").exists():
            return Path(place)
    pytest.skip("mnist.npz is neither in HUBBUB_DATA nor beside the project")
