"""The same two apps in this process: 20 nodes more than a round waits for, no network, no Ray."""

import os
import tomllib
from pathlib import Path

# Before Flower is imported: nothing leaves this machine.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import torch

from flower_quickstart import client_app, server_app
from hubbub.flower import LocalGrid

HERE = Path(__file__).parent

if __name__ == "__main__":
    # Steps of small models are slower on several threads.
    torch.set_num_threads(1)
    settings = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings["state"] = str(HERE / "state")
    LocalGrid(client_app.app, num_nodes=settings["min-nodes"] + 20, run_config=settings).run_app(server_app.app)
