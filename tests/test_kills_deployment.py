"""The server of a federation of processes is killed ten times: each start goes on, and what it released stays released."""

import importlib.util
import itertools
import os
import random
import shutil
import signal
import time
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_deployment import Deployment
from hubbub.noise.lattice import Lattice
from hubbub.verification import verify
from release_file import release_digest
from test_flower_deployment import APP, NODES, Seen, flat
from witness import records

KILLS, LAST_ROUNDS = 10, 3
# Planned, more than there is time for; and the seconds that all of it may take.
ROUNDS, SECONDS = 80, 1200.0
# Rounds of the app whose figures are replaced, and which file says so.
FIGURES = "ROUNDS, SEPARATION, PARTICIPATIONS, NOISE_MULTIPLIER = 5, 2, 3, 1.0"


class Killed(Seen):
    """What all starts left: the models lie in one folder, by the number of rounds that were charged."""

    @cached_property
    def models(self) -> list[dict[str, np.ndarray]]:
        return [self.model(0, rounds) for rounds in range(len(self.history.rounds) + 1)]

    @cached_property
    def releases(self) -> list[np.ndarray]:
        """What each round released, in steps: an aborted one moves nothing, and leaves the momentum as it was."""
        found, velocity = [], np.zeros_like(flat(self.models[0]))
        for entry, (before, after) in zip(self.history.rounds, itertools.pairwise(self.models), strict=True):
            moved = flat(after) - flat(before)
            if entry.state == "aborted":
                assert not moved.any(), "an aborted round moved the model"
                found.append(moved)
                continue
            mean = moved - self.task.MOMENTUM * velocity
            velocity = moved
            found.append(mean * self.task.COHORT / Lattice(self.task.CLIP_NORM).step)
        return found


@pytest.fixture
def app(tmp_path: Path) -> tuple[Path, ModuleType]:
    """The app, for more rounds, and what it trains."""
    shutil.copytree(APP, tmp_path / "app")
    file = tmp_path / "app" / "digits_app" / "task.py"
    text = file.read_text()
    assert text.count(FIGURES) == 1
    file.write_text(text.replace(" = 5, 2, 3, 1.0", f" = {ROUNDS}, 2, {ROUNDS // 2}, 1.0"))
    found = importlib.util.spec_from_file_location("killed_task", file)
    task = importlib.util.module_from_spec(found)
    found.loader.exec_module(task)
    return tmp_path / "app", task


def servers(deployment: Deployment) -> list[int]:
    """The processes that run a ServerApp."""
    found = []
    for pid in deployment.left():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"serverapp" in command:
            found.append(pid)
    return found


def begun(state: Path) -> int:
    """How many rounds the ledger has charged."""
    return sum(body["kind"] == "begin" for body in records(state))


def killed(folder: Path, app: Path) -> None:
    """Runs that go on with one state, of which all but the last are killed after they have begun a round."""
    images, targets = load_digits(return_X_y=True)
    config = {node: {"name": node, "data": str(folder / f"{node}.npz")} for node in NODES}
    for number, node in enumerate(NODES):
        np.savez(folder / f"{node}.npz", x=images[number :: len(NODES)] / 16, y=targets[number :: len(NODES)])
    (folder / "run-0").mkdir()
    moments, state = random.Random(KILLS), folder / "state"  # noqa: S311 # moments of a test
    with Deployment(folder / "flower", seconds=SECONDS) as deployment:
        deployment.start_superlink()
        deployment.register(NODES)
        for node in NODES:
            deployment.start_node(node, **config[node])
            deployment.admitted(node)
        told = {"state": str(state), "record": str(folder / "run-0")}
        for number in range(KILLS):
            # In its first round, its second or its third.
            until = begun(state) + moments.randrange(1, 4)
            deployment.start_run(f"run-{number}", app, num_server_rounds=ROUNDS, **told)
            deployment.wait(lambda until=until: begun(state) >= until, f"run {number} has its rounds")
            time.sleep(moments.uniform(0, 2.0))
            running = servers(deployment)
            assert running
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            deployment.kill(f"run-{number}")
        deployment.start_run("last", app, num_server_rounds=LAST_ROUNDS, **told)
        deployment.finished("last")
    assert deployment.left() == []


@pytest.mark.slow
def test_flw_5_prt_3_cra_1_the_server_of_a_deployment_is_killed_ten_times(tmp_path: Path, app: tuple[Path, ModuleType]) -> None:
    source, task = app
    killed(tmp_path, source)
    seen = Killed(tmp_path, task, victim="")
    rounds = seen.history.rounds
    states = [entry.state for entry in rounds]
    print(f"{KILLS} kills over {len(rounds)} rounds, {states.count('aborted')} aborted")  # noqa: T201 # what was shown
    assert states[-LAST_ROUNDS:] == ["committed"] * LAST_ROUNDS
    assert set(states) <= {"committed", "aborted"}
    assert states.count("aborted") <= KILLS
    # Each start has a key of its own.
    assert len(seen.history.epochs) == KILLS + 1
    assert len({epoch.key for epoch in seen.history.epochs}) == KILLS + 1
    for number, entry in enumerate(rounds):
        if entry.state == "committed":
            # The model moved by the very release that was recorded, which is updates of nodes and the noise of the keys.
            step = Lattice(task.CLIP_NORM).step
            assert release_digest(np.rint(seen.releases[number]) * step, step) == entry.release
            assert len(seen.trained(number)) <= task.COHORT
    for joined in seen.history.participations.sets():
        assert len(joined) <= task.PARTICIPATIONS
        assert all(later - earlier >= task.SEPARATION for earlier, later in itertools.pairwise(joined))
    told = seen.told(0)
    assert told["rounds"] == len(rounds)
    verdict = verify(tmp_path / "state", head=told["head"])
    assert verdict.ok, verdict
