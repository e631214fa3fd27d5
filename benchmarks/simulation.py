"""Rounds of simulated clients: ours beside pfl-research, Flower on Ray and two loops, at the same work.

The work is federated averaging on MNIST: 100 clients of 600 images, or with --quick 50 of 300; one pass of SGD over each one's
images, batches of 10, learning rate 0.05, processes of one thread. All sides start from the same model and take turns of one
round; a side's cost is its cheapest round after the first. That they did the same shows in the test accuracy, which is not part
of the cost.

pfl and Flower run in an environment of their own, which --peers makes in a folder (by default .venv-peers; 1.4 GB).
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

import _runner
from _peer_process import DEFAULT_FOLDER, Environment, Peer, Round
from _peer_turns import Work
from _runner import Row, Skipped
from _simulation_privacy import privacy_rows
from _simulation_scale import memory_rows, plan_rows
from _simulation_sides import Here, Side, cnn, images, in_turn, mnist_work, ours, plain_loop, population
from hubbub.training import Execution

OURS, PFL, FLOWER, PLAIN, LEAN = "ours", "pfl", "Flower on Ray", "a plain loop", "one by one"
CNN_GOALS = {PFL: 1.8, FLOWER: 2.0, PLAIN: 1.5, LEAN: 1.5}
MLP_GOALS = {PFL: 1.5, LEAN: 1.0}
LARGE_GOALS = {LEAN: 0.97}
UNTRAINED_LIMIT, UNTRAINED_GOAL = 0.030, 10.0
ONE_BY_ONE = Execution(plan="one-by-one")
# Flower's actors, of one core each.
ACTORS = 2
# Of sums in float32 in another order, and of accuracies from other shuffles, relatively.
SUM_TOLERANCE, ACCURACY_TOLERANCE = 1e-4, 0.02


def mlp() -> nn.Module:
    """199,210 parameters."""
    layers = nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def large_cnn() -> nn.Module:
    """1,199,882 parameters."""
    convolutions = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*convolutions, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


@dataclass(frozen=True)
class Measured:
    """What rounds of the same work cost.

    Args:
        clients: How many took part in each.
        plan: Ours.
        costs: Of each side.
    """

    clients: int
    plan: str
    costs: Mapping[str, Round]


@dataclass(frozen=True)
class Simulation:
    """The rows that have peers.

    Args:
        peers: Where they are, if anywhere.
    """

    peers: Environment

    def cnn_rows(self, seconds: float) -> list[Row | Skipped]:
        """A network of 21,840 parameters."""
        work = mnist_work(cnn(), *_size(seconds))
        return cpu_rows("CNN, 21,840 parameters", self._measured(work, CNN_GOALS, seconds), CNN_GOALS)

    def mlp_rows(self, seconds: float) -> list[Row | Skipped]:
        """A network whose weights outweigh its arithmetic."""
        measured = self._measured(mnist_work(mlp(), *_size(seconds)), MLP_GOALS, seconds)
        return cpu_rows("MLP, 199,210 parameters", measured, MLP_GOALS)

    def large_rows(self, seconds: float) -> list[Row | Skipped]:
        """A network of which one client fills a core: ten clients of a third of the images, or a round would take minutes."""
        measured = self._measured(mnist_work(large_cnn(), 10, _size(seconds)[1] // 3), LARGE_GOALS, seconds)
        return cpu_rows("CNN, 1,199,882 parameters", measured, LARGE_GOALS)

    def untrained_rows(self, seconds: float) -> list[Row | Skipped]:
        """What a round costs beside its training: 21,840 parameters to each of 100 clients and back.

        Ours take one step on one example through a linear layer, since a client of ours always trains; Flower's take none.
        """
        inputs, targets = torch.rand(100, 1, 168), torch.randint(130, (100, 1))
        work = Work(nn.Linear(168, 130, bias=False), (inputs, targets), (inputs[0], targets[0]), batch_size=1)
        clients = population(work)
        mine = least_wall_seconds(lambda: clients.collect(clients.clients, work.model, None, 0).open(None), seconds)
        costs = self._costs(replace(work, epochs=0), {}, [FLOWER], seconds)
        name = "no training, 100 clients x 21,840 parameters; peer: "
        limit = f"{name}a limit of {1000 * UNTRAINED_LIMIT:g} ms"
        rows: list[Row | Skipped] = [Row(limit, mine, UNTRAINED_LIMIT, 1.0, unit="wall seconds")]
        if FLOWER not in costs:
            return [*rows, _missing(name + FLOWER)]
        return [*rows, Row(name + FLOWER, mine, costs[FLOWER].wall_seconds, UNTRAINED_GOAL, unit="wall seconds")]

    def _measured(
        self, work: Work, goals: Mapping[str, float], seconds: float, more: Mapping[str, Side] = MappingProxyType({})
    ) -> Measured:
        """Ours, and the sides that have goals, as far as they are here."""
        require_same_sum(work)
        clients = population(work)
        own: dict[str, Side] = {OURS: Here(work, ours(clients)), **more}
        if LEAN in goals:
            own[LEAN] = Here(work, ours(population(work, ONE_BY_ONE)))
        if PLAIN in goals:
            own[PLAIN] = Here(work, plain_loop(work))
        costs = self._costs(work, own, [peer for peer in goals if peer in (PFL, FLOWER)], seconds)
        return Measured(len(work.clients[0]), clients.plan, costs)

    def _costs(self, work: Work, own: Mapping[str, Side], peers: Sequence[str], seconds: float) -> dict[str, Round]:
        """What rounds cost our sides and the peers that are installed."""
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
            sides = dict(own)
            if peers and self.peers.installed:
                file = Path(folder) / "work.pt"
                work.save(file)
                arguments = {PFL: ("_peer_pfl", str(file)), FLOWER: ("_peer_flower", str(file), str(ACTORS))}
                for peer in peers:
                    sides[peer] = running.enter_context(Peer(self.peers, *arguments[peer]))
            return in_turn(sides, later=1 if _quick(seconds) else 3)


def cpu_rows(model: str, measured: Measured, goals: Mapping[str, float]) -> list[Row | Skipped]:
    """CPU seconds of a round of ours, beside each side that has a goal."""
    rows: list[Row | Skipped] = []
    for peer, goal in goals.items():
        name = f"{model}, {measured.clients} clients; peer: {peer}"
        if peer not in measured.costs:
            rows.append(_missing(name))
            continue
        mine, theirs = measured.costs[OURS], measured.costs[peer]
        _runner.require_agreement(f"{name}: accuracy", mine.accuracy, theirs.accuracy, ACCURACY_TOLERANCE)
        note = f"accuracy {mine.accuracy:.4f}, the peer's {theirs.accuracy:.4f}; our plan: {measured.plan}"
        rows.append(Row(name, mine.cpu_seconds, theirs.cpu_seconds, goal, note=note))
    return rows


def require_same_sum(work: Work) -> None:
    """Stop unless our plan and the plain loop make the same of the first ten clients, each with one whole batch.

    Batches are drawn by each side's own coins; of one whole batch the order does not matter.
    """
    inputs, targets = work.clients
    few = replace(work, clients=(inputs[:10, :60], targets[:10, :60]), batch_size=60)
    mine, plain = (summing(few.model, 0).numpy() for summing in (ours(population(few)), plain_loop(few)))
    _runner.require_agreement("the sum of ten clients", mine, plain, SUM_TOLERANCE)


def least_wall_seconds(call: Callable[[], object], seconds: float) -> float:
    """Of as many calls as fit into a time, the first not counted."""
    call()
    spent, stop = [], time.perf_counter() + seconds
    while not spent or time.perf_counter() < stop:
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
    return min(spent)


def _missing(name: str) -> Skipped:
    return Skipped(name, "peer not installed: run with --peers")


def _quick(seconds: float) -> bool:
    return seconds <= _runner.QUICK


def _size(seconds: float) -> tuple[int, int]:
    """Clients, and images of each."""
    return (50, 300) if _quick(seconds) else (100, 600)


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument(
        "--peers",
        metavar="DIR",
        nargs="?",
        type=Path,
        const=DEFAULT_FOLDER,
        help="install pfl and Flower into a virtual environment in DIR, where they are not yet (default: .venv-peers)",
    )
    asked = own.parse_known_args()[0].peers
    peers = Environment((asked or DEFAULT_FOLDER).absolute())
    if asked:
        peers.install()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images()
    simulation = Simulation(peers)
    with_peers = simulation.cnn_rows, simulation.mlp_rows, simulation.large_rows, simulation.untrained_rows
    parts = *with_peers, privacy_rows, memory_rows, plan_rows
    _runner.main(__doc__, *parts, options=own)


if __name__ == "__main__":
    main()
