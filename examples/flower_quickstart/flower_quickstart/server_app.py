"""The server: Flower's FedAvg within one line of privacy."""

import logging
import shlex
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_quickstart import task
from hubbub.flower import DPFedAvgFixed
from hubbub.training import HeadHook

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """A run, or its next rounds: what was spent before stays spent."""
    settings = context.run_config
    state, hook = Path(settings["state"]).expanduser(), settings["head-hook"]
    to = hook if "://" in hook else shlex.split(hook)
    strategy = DPFedAvgFixed(
        FedAvg(min_available_nodes=settings["min-nodes"]),
        clip_norm=settings["clip-norm"],
        noise_multiplier=settings["noise-multiplier"],
        sampling_probability=settings["sampling-probability"],
        expected_cohort_size=settings["sampling-probability"] * settings["min-nodes"],
        delta=settings["delta"],
        stop_epsilon=settings["stop-epsilon"] or None,
        deadline=settings["deadline"] or None,
        keys_enforced=settings["keys-enforced"],
        head_hook=HeadHook(to, key=settings["head-key"] or None, required=settings["head-required"]) if hook else None,
        state=state,
    )
    model = task.new_model()
    result = strategy.start(
        grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=settings["num-server-rounds"],
        timeout=settings["round-timeout"],
        evaluate_fn=evaluate,
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())
    log = logging.getLogger("flwr")
    log.info("Test accuracy: %.1f %%", 100 * task.accuracy(model))
    log.info("Guarantee: %s", strategy.guarantee().sentence())
    log.info("Kept in %s; ledger head, to keep elsewhere: %s", state, strategy.ledger_head)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The model on examples that are public: no client's data, so it costs nothing."""
    model = task.new_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": task.accuracy(model)})
