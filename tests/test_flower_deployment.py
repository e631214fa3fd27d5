"""A federation of processes on this machine: TLS, registered nodes, one of them killed, and a server that is started twice."""

import itertools
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cohort_file import cohorts as cohorts_of
from flower_deployment import Deployment, write_node_key
from hockey_stick import gaussian_delta
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.mechanism.utility import noising_matrix
from hubbub.noise import SecureSource
from hubbub.noise.lattice import Lattice
from hubbub.verification import verify
from release_file import release_digest

APP = Path(__file__).parent / "data" / "flower_app"
NODES = ("node-0", "node-1", "node-2")
# Rounds of the two runs, and the seconds that all of it may take.
ROUNDS = (3, 2)
# In steps of the lattice, of which a clip norm has 2**24: rounding an update moves no coordinate by so many, while another
# client's update, or another row of noise, moves some by hundreds of thousands.
NEAR = 100


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the app trains, and what it promises."""
    monkeypatch.syspath_prepend(APP)
    from digits_app import task

    return task


@dataclass(frozen=True)
class Seen:
    """What two runs left in a folder: ``state``, which they share, and ``run-0``, ``run-1``, the models that each has seen."""

    folder: Path
    task: ModuleType
    victim: str

    @cached_property
    def history(self) -> History:
        return History.of_chain(read_chain(self.folder / "state" / "ledger.jsonl"))

    def told(self, run: int) -> dict[str, Any]:
        return json.loads((self.folder / f"run-{run}" / "told.json").read_text())

    def model(self, run: int, rounds: int) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"run-{run}" / f"{rounds}.npz") as model:
            return dict(model)

    @cached_property
    def models(self) -> list[dict[str, np.ndarray]]:
        """Before the first round, and after each."""
        return [self.model(run, rounds) for run, rounds in [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]]

    @cached_property
    def releases(self) -> list[np.ndarray]:
        """What each round released, in steps: FedAvgM's step is the mean that it got + momentum × the step before."""
        moved = [flat(after) - flat(before) for before, after in itertools.pairwise(self.models)]
        means = [step - self.task.MOMENTUM * last for step, last in zip(moved, [0.0 * moved[0], *moved], strict=False)]
        return [mean * self.task.COHORT / Lattice(self.task.CLIP_NORM).step for mean in means]

    @cached_property
    def noise(self) -> np.ndarray:
        """The noise of each round, in steps: N·z from the keys, each row of z from the start in which it was first drawn."""
        mechanism, epochs = self.task.mechanism(), self.history.epochs
        keys = [(self.folder / "state" / "state" / "keys" / f"epoch-{number}").read_bytes() for number in range(len(epochs))]
        owners = [max(e for e, epoch in enumerate(epochs) if epoch.first_row <= row) for row in range(mechanism.rounds)]
        dim = len(flat(self.models[0]))
        z = np.array([SecureSource(keys[owner]).row(row, dim).numpy() for row, owner in enumerate(owners)])
        scale = mechanism.stddev * self.task.CLIP_NORM / Lattice(self.task.CLIP_NORM).step
        return np.rint(scale * noising_matrix(mechanism.strategy) @ z)

    def steps(self, node: str, round_index: int) -> np.ndarray:
        """A node's clipped update in a round."""
        before = self.models[round_index]
        update = flat(self.task.train(before, self.folder / f"{node}.npz")) - flat(before)
        return update * min(1.0, self.task.CLIP_NORM / np.linalg.norm(update)) / Lattice(self.task.CLIP_NORM).step

    def trained(self, round_index: int) -> set[str]:
        """The only nodes whose updates and the round's noise add up to what was released."""
        rest = self.releases[round_index] - self.noise[round_index]
        groups = [group for size in range(len(NODES)) for group in itertools.combinations(NODES, size)]
        sums = {group: sum((self.steps(node, round_index) for node in group), 0.0 * rest) for group in groups}
        (found,) = [group for group, total in sums.items() if np.abs(rest - total).max() < NEAR]
        return set(found)


def flat(model: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in model.values()])


def federated(folder: Path, seconds: float) -> str:
    """Two runs; the node that was killed in the first round, and came back with the same key before the second run."""
    images, targets = load_digits(return_X_y=True)
    config = {node: {"name": node, "data": str(folder / f"{node}.npz")} for node in NODES}
    for number, node in enumerate(NODES):
        np.savez(folder / f"{node}.npz", x=images[number :: len(NODES)] / 16, y=targets[number :: len(NODES)])
    (folder / "run-0").mkdir()
    (folder / "run-1").mkdir()
    hangs = folder / "run-0" / "hangs"
    with Deployment(folder / "flower", seconds=seconds) as deployment:
        deployment.start_superlink()
        # It waits until all nodes are there.
        first = {"record": str(folder / "run-0"), "num_server_rounds": ROUNDS[0], "hang_in_round": 1}
        deployment.start_run("run-0", APP, state=str(folder / "state"), **first)
        ids = deployment.register(NODES)
        for node in NODES:
            deployment.start_node(node, **config[node])
        assert {node: deployment.admitted(node) for node in NODES} == ids
        deployment.wait(lambda: hangs.exists() and hangs.read_text().endswith("\n"), "a client hangs", runs="run-0")
        victim = hangs.read_text().strip()
        deployment.kill(victim)
        write_node_key(deployment.key("stranger"))
        deployment.start_node("stranger")
        # The second process of the server starts up meanwhile, and waits.
        second = {"record": str(folder / "run-1"), "num_server_rounds": ROUNDS[1], "begins_when": str(folder / "begins")}
        deployment.start_run("run-1", APP, state=str(folder / "state"), **second)
        assert "Failed to activate SuperNode" in deployment.finished("stranger", well=False)
        assert deployment.restart_node(victim, **config[victim]) == ids[victim]
        deployment.finished("run-0")
        (folder / "begins").touch()
        deployment.finished("run-1")
    assert deployment.left() == []
    return victim


def require_participation_kept(seen: Seen) -> None:
    """By the ledger: every round has as many clients as may join, in both runs, and the killed node is no new client."""
    task, cohorts = seen.task, [set(each) for each in cohorts_of(seen.folder / "state" / "ledger.jsonl")]
    assert len(cohorts) == sum(ROUNDS)
    clients = set.union(*cohorts)
    assert len(clients) == len(NODES)
    for now, joined in enumerate(cohorts):
        before = {client: [t for t in range(now) if client in cohorts[t]] for client in clients}
        recent = {client for client in clients if any(now - t < task.SEPARATION for t in before[client])}
        often = {client for client in clients if len(before[client]) >= task.PARTICIPATIONS}
        assert joined.isdisjoint(recent | often)
        assert len(joined) == min(task.COHORT, len(clients - recent - often))
    assert seen.history.participations.clients == len(clients)


def require_noise_continued(seen: Seen) -> None:
    """Every release is the sum of updates and the noise that the keys of both starts give, and nothing else was released."""
    assert [epoch.first_row for epoch in seen.history.epochs] == [0, ROUNDS[0]]
    for number, release in enumerate(seen.releases):
        step = Lattice(seen.task.CLIP_NORM).step
        assert seen.history.rounds[number].state == "committed"
        assert release_digest(np.rint(release) * step, step) == seen.history.rounds[number].release
    trained = [seen.trained(number) for number in range(sum(ROUNDS))]
    (other,) = trained[0]
    (third,) = set(NODES) - {seen.victim, other}
    # In the third round the killed node was asked, and may have been away.
    assert trained[2] in ({other}, {other, seen.victim})
    assert [*trained[:2], *trained[3:]] == [{other}, {third}, {third}, {other, seen.victim}]


def require_guarantee_counts_both_runs(seen: Seen) -> None:
    """The delta of each stated epsilon, by the Gaussian's formula, for a client in every other round from the first on."""
    for run, rounds in enumerate(itertools.accumulate(ROUNDS)):
        told = seen.told(run)
        assert told["rounds"] == rounds
        # Columns of C, (1, 1/2) and for the last round (1,), that do not overlap: a client in rounds 0, 2, 4.
        norms = 1.25 * (rounds // 2) + 1.0
        mu, epsilon = math.sqrt(norms / 1.25) / seen.task.NOISE_MULTIPLIER, told["epsilon"]
        assert float(gaussian_delta(mu, epsilon)) == pytest.approx(seen.task.DELTA, rel=1e-3)


@pytest.mark.slow
def test_flw_5_a_federation_stays_private_if_a_node_is_killed_and_the_server_restarts(tmp_path: Path, task: ModuleType) -> None:
    seen = Seen(tmp_path, task, federated(tmp_path, 175.0))
    require_participation_kept(seen)
    assert all(np.array_equal(array, seen.models[ROUNDS[0]][name]) for name, array in seen.model(1, ROUNDS[0]).items())
    require_noise_continued(seen)
    require_guarantee_counts_both_runs(seen)
    verdict = verify(tmp_path / "state", head=seen.told(0)["head"])
    assert verdict.ok, verdict
