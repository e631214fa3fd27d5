"""What an engine costs a client for a round: an app as a Flower user writes it, against a plain loop of the same work.

The sides take turns of one round of all clients, and the least that a turn took counts: what the first round costs more, and
what other work on the machine adds, is left out on both sides.
"""

import logging
import os

# Before Flower is imported: nothing may leave this machine.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

import _runner
from hubbub.flower.local_grid import LocalGrid

CLIENTS, SAMPLES, STEPS = 100, 64, 4
LEARNING_RATE = 0.1
# Of averages in float32, in another order.
TOLERANCE = 1e-5
# The plain loop costs at least this part of ours.
GOAL = 1 / 2.5

State = dict[str, torch.Tensor]
Client = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def trained(state: State, client: Client) -> State:
    """The model after a client's steps."""
    model = network()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for inputs, targets in zip(*(part.chunk(STEPS) for part in client), strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model.state_dict()


def plain_round(clients: list[Client], state: State) -> State:
    """Federated averaging and nothing else."""
    total = {name: torch.zeros_like(value) for name, value in state.items()}
    for client in clients:
        for name, value in trained(state, client).items():
            total[name] += value
    return {name: value / len(clients) for name, value in total.items()}


def federation(clients: list[Client]) -> LocalGrid:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        state = trained(message.content["arrays"].to_torch_state_dict(), clients[int(context.node_config["partition-id"])])
        metrics = MetricRecord({"num-examples": SAMPLES})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    return LocalGrid(app, num_nodes=len(clients))


def flower_round(grid: LocalGrid, state: State) -> State:
    """The same through Flower's own FedAvg."""
    strategy = FedAvg(fraction_evaluate=0.0)
    return strategy.start(grid, ArrayRecord(state), num_rounds=1).arrays.to_torch_state_dict()


def flat(state: State) -> npt.NDArray[np.float32]:
    return np.concatenate([value.numpy().ravel() for value in state.values()])


def engine_speed_rows(seconds: float) -> list[_runner.Row]:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clients = [(torch.randn(SAMPLES, 64), torch.randint(10, (SAMPLES,))) for _ in range(CLIENTS)]
    start = network().state_dict()
    grid = federation(clients)
    name = f"LocalGrid, a round of a client of {CLIENTS}, MLP 64-128-10, {SAMPLES} samples; peer: a plain loop"
    # The first rounds, which also load what torch loads late.
    _runner.require_agreement(name, flat(flower_round(grid, start)), flat(plain_round(clients, start)), TOLERANCE)
    measured = _runner.measure(lambda: flat(flower_round(grid, start)), lambda: flat(plain_round(clients, start)), seconds)
    return [_runner.Row(name, measured.ours / CLIENTS, measured.peer / CLIENTS, GOAL)]
