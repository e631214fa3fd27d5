"""The server: correlated noise, each node in every other round at most."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from digits_app import task
from hubbub.flower import MatrixFactorizationDP

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Go on with the run in the state folder, for some rounds."""
    config, record = context.run_config, Path(context.run_config["record"])
    while config["begins-when"] and not Path(config["begins-when"]).exists():
        time.sleep(0.1)
    strategy = MatrixFactorizationDP(
        FedAvgM(fraction_evaluate=0.0, min_available_nodes=task.NODES, server_momentum=task.MOMENTUM),
        mechanism=task.mechanism(),
        clip_norm=task.CLIP_NORM,
        num_sampled_clients=task.COHORT,
        keys_enforced=True,
        delta=task.DELTA,
        deadline=config["deadline"] or None,
        state=config["state"],
    )

    def keep(_: int, arrays: ArrayRecord) -> None:
        model = {name: array.numpy() for name, array in arrays.items()}
        np.savez(record / f"{strategy.rounds_charged}.npz", **model)

    strategy.start(
        grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in task.initial().items()}),
        num_rounds=config["num-server-rounds"],
        timeout=config["timeout"],
        evaluate_fn=keep,
    )
    told = {"rounds": strategy.rounds_charged, "epsilon": strategy.guarantee().epsilon, "head": strategy.ledger_head}
    (record / "told.json").write_text(json.dumps(told))
