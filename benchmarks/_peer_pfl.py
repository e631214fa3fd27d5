"""Rounds in pfl-research: one process, PyTorchModel and FederatedAveraging, as its own benchmarks use them.

A user's batches are cut once and kept, in the order of the examples, as pfl does it: it neither shuffles nor gathers. It
evaluates on the training data in the first round only.
"""

import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from _peer_turns import Turns, Work

_NEVER = 10**9


class Module(nn.Module):
    """A module with the methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.module(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(inputs, targets)) * len(targets), len(targets))}


class InTurn(TrainingProcessCallback):
    """Begins a round when it is asked for."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        if not self._turns.another(model.pytorch_model.module):
            sys.exit()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        return not self._turns.another(model.pytorch_model.module), Metrics()


def main() -> None:
    torch.set_num_threads(1)
    work = Work.load(sys.argv[1])
    clients = range(len(work.clients[0]))
    users = {number: PyTorchTensorDataset(work.client(number)) for number in clients}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(clients)))
    module = Module(work.model)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=_NEVER, evaluation_frequency=_NEVER, train_cohort_size=len(clients), val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.learning_rate, local_batch_size=work.batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[InTurn(Turns(work))],
    )


if __name__ == "__main__":
    main()
