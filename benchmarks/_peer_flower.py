"""Rounds in Flower's simulation on Ray: FedAvg over as many actors of one core each as are asked for.

A client keeps its model from one message to the next and takes its batches as slices of tensors, which is cheaper than the
quickstart's data loader. Call :func:`main` from another module: a ClientApp of ``__main__`` would travel by value, and every
message would read the data anew.
"""

import sys
from copy import deepcopy
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from _peer_turns import Turns, Work

_NEVER = 10**9
app = ClientApp()


@lru_cache
def loaded(path: str) -> tuple[Work, nn.Module]:
    """An actor's work, and the module in which it trains."""
    torch.set_num_threads(1)
    work = Work.load(path)
    return work, deepcopy(work.model)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's part of a round."""
    work, model = loaded(str(message.content["config"]["work"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs, targets = work.client(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    for _ in range(work.epochs):
        for batch in torch.randperm(len(inputs)).split(work.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class EnoughError(Exception):
    """No further round is asked for."""


def main() -> None:
    torch.set_num_threads(1)
    path, actors = sys.argv[1:]
    work, model = loaded(path)
    turns = Turns(work)

    def asked_for(server_round: int, arrays: ArrayRecord) -> None:
        """Called before the first round and after each."""
        model.load_state_dict(arrays.to_torch_state_dict())
        if not turns.another(model):
            raise EnoughError

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        config = ConfigRecord({"work": path})
        strategy.start(grid, ArrayRecord(model.state_dict()), _NEVER, train_config=config, evaluate_fn=asked_for)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": int(actors)}}
    try:
        run_simulation(server, app, num_supernodes=len(work.clients[0]), backend_config=resources)
    except EnoughError:
        return
