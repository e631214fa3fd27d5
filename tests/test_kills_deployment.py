"""Fifty nodes: rounds end by a deadline, a fifth of the answers are lost or late, and the server is killed ten times."""

import importlib.util
import itertools
import json
import math
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flower_defects import gaussian_epsilon
from flower_deployment import Deployment
from hubbub.noise.lattice import Lattice
from hubbub.verification import verify
from release_file import release_digest
from test_flower_deployment import APP, NEAR, Seen, flat
from witness import records

NODES, COHORT, SEPARATION = 50, 10, 4
# Rounds that are to be released, and kills; those that a kill aborts are begun beyond them.
ROUNDS, KILLS = 200, 10
PLANNED = ROUNDS + KILLS
# Seconds until a round closes, and that all of it may take.
DEADLINE, SECONDS = 3.0, 2400.0
# Figures of the app that are replaced.
FIGURES = {
    "NODES, COHORT = 3, 2": f"NODES, COHORT = {NODES}, {COHORT}",
    "ROUNDS, SEPARATION, PARTICIPATIONS, NOISE_MULTIPLIER = 5, 2, 3, 1.0": (
        f"ROUNDS, SEPARATION, PARTICIPATIONS, NOISE_MULTIPLIER = {PLANNED}, {SEPARATION}, {-(-PLANNED // SEPARATION)}, 1.0"
    ),
}


class Killed(Seen):
    """What all starts left: the models lie in one folder, by the number of rounds that were begun."""

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

    @cached_property
    def asked(self) -> dict[str, list[dict[str, str]]]:
        """What became of the messages of each group, as the nodes say: one group a round that asked somebody."""
        groups: dict[str, list[dict[str, str]]] = {}
        for path in sorted((self.folder / "answers").iterdir()):
            for line in path.read_text().splitlines():
                noted = json.loads(line)
                groups.setdefault(noted["group"], []).append({**noted, "node": path.name})
        return groups

    def answered(self, round_index: int) -> list[str]:
        """The nodes whose updates are in a release: on a busy machine not all that were in time, or some that were late."""
        rest, model = self.releases[round_index] - self.noise[round_index], self.models[round_index]["weight"].tobytes()
        for group in self.asked.values():
            nodes = [noted["node"] for noted in group if noted["what"] != "lost"]
            if group[0]["model"] != sha256(model).hexdigest():
                continue
            steps = {node: self.steps(node, round_index) for node in nodes}
            for missing in (some for count in range(len(nodes) + 1) for some in itertools.combinations(nodes, count)):
                total = sum((steps[node] for node in nodes if node not in missing), 0.0 * rest)
                if np.abs(rest - total).max() < NEAR:
                    return [node for node in nodes if node not in missing]
        raise AssertionError(f"round {round_index}: its release is no sum of answers and noise")


@pytest.fixture
def app(tmp_path: Path) -> tuple[Path, ModuleType]:
    """The app with the figures of this federation, and what it trains."""
    shutil.copytree(APP, tmp_path / "app")
    file = tmp_path / "app" / "digits_app" / "task.py"
    text = file.read_text()
    for before, after in FIGURES.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    file.write_text(text)
    found = importlib.util.spec_from_file_location("killed_task", file)
    task = importlib.util.module_from_spec(found)
    found.loader.exec_module(task)
    return tmp_path / "app", task


def counted(state: Path, kind: str) -> int:
    """How many records of a kind the ledger has."""
    return sum(body["kind"] == kind for body in records(state))


def federated(folder: Path, app: Path) -> None:
    """Runs that resume one state, of which all but the last are killed at a random instant."""
    images, targets = load_digits(return_X_y=True)
    for number in range(NODES):
        np.savez(folder / f"node-{number:02}.npz", x=images[number::NODES] / 16, y=targets[number::NODES])
    for name in ("run-0", "answers"):
        (folder / name).mkdir()
    (folder / "keys").symlink_to(folder / "flower" / "keys")
    moments, state = random.Random(KILLS), folder / "state"  # noqa: S311 # moments of a test
    with Deployment(folder / "flower", seconds=SECONDS) as deployment:
        deployment.start_superlink()
        deployment.register([f"node-{number:02}" for number in range(NODES)])
        deployment.start_many(Path(__file__).parent / "many_nodes.py", folder, app, DEADLINE)
        deployment.wait(lambda: deployment.log("nodes").count("node-") >= NODES, "all nodes are admitted", runs="nodes")
        config = {"state": str(state), "record": str(folder / "run-0"), "deadline": DEADLINE}
        for number in range(KILLS):
            until = counted(state, "begin") + moments.randrange(1, 3 * ROUNDS // (2 * KILLS))
            deployment.start_run(f"run-{number}", app, num_server_rounds=PLANNED, **config)
            enough = f"run {number} has its rounds"
            deployment.wait(lambda until=until: counted(state, "begin") >= until, enough, runs=f"run-{number}")
            time.sleep(moments.uniform(0, DEADLINE + 1))
            running = []
            for pid in deployment.left():
                with suppress(OSError):
                    running += [pid] if b"serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
            assert running
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            deployment.kill(f"run-{number}")
        rest = ROUNDS - counted(state, "commit")
        deployment.start_run("last", app, num_server_rounds=rest, **config)
        deployment.finished("last")
    assert deployment.left() == []


@pytest.mark.slow
def test_flw_5_prt_3_cra_1_the_server_of_a_deployment_is_killed_ten_times(tmp_path: Path, app: tuple[Path, ModuleType]) -> None:
    source, task = app
    federated(tmp_path, source)
    seen = Killed(tmp_path, task, victim="")
    rounds = seen.history.rounds
    states = Counter(entry.state for entry in rounds)
    assert states["committed"] == ROUNDS
    assert states["aborted"] == len(rounds) - ROUNDS <= KILLS
    # Each start has a key of its own, and each row of noise one key.
    assert len({incarnation.key for incarnation in seen.history.epochs}) == KILLS + 1
    step, counts = Lattice(task.CLIP_NORM).step, Counter[int]()
    for number, entry in enumerate(rounds):
        if entry.state == "committed":
            # The model moved by the very release on record: the updates that came in time, and this round's noise.
            assert release_digest(np.rint(seen.releases[number]) * step, step) == entry.release
            counts[len(seen.answered(number))] += 1
    for joined in seen.history.participations.sets():
        assert len(joined) <= task.PARTICIPATIONS
        assert all(later - earlier >= SEPARATION for earlier, later in itertools.pairwise(joined))
    fates = Counter(noted["what"] for group in seen.asked.values() for noted in group)
    print(  # noqa: T201 # what was shown
        f"{ROUNDS} rounds in {len(seen.history.epochs)} starts, {states['aborted']} aborted; messages {dict(fates)}; "
        f"answers counted in a round {dict(sorted(counts.items()))}"
    )
    assert 0.1 < (fates["lost"] + fates["late"]) / fates.total() < 0.3
    stated, begun = seen.told(0), len(rounds)
    assert stated["rounds"] == begun
    # The epsilon of a client in every fourth round, from the worst first one, by the Gaussian's formula.
    norms = np.square(task.mechanism().strategy.matrix()[:begun, :begun]).sum(axis=0)
    worst = max(norms[start::SEPARATION].sum() for start in range(SEPARATION))
    mu = math.sqrt(worst / norms.max()) / task.NOISE_MULTIPLIER
    assert stated["epsilon"] == pytest.approx(gaussian_epsilon(mu, task.DELTA), rel=1e-6)
    verdict = verify(tmp_path / "state", head=stated["head"])
    assert verdict.ok, verdict
