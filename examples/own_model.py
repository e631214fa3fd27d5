"""A model and data of your own, trained privately in a loop of your own.

Any ``torch.nn.Module`` without buffers will do, unmodified; each client is a pair of tensors (inputs, targets).

    python examples/own_model.py
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import accounting
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.strategies import toeplitz
from hubbub.training import LocalTraining, RunPlan, SimulatedPopulation, train


class Regression(nn.Module):
    """Three numbers in, one out."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.norm(self.hidden(x))))


def people(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Twenty measurements of each of ``count`` people: y = x₀ − 2x₁ + noise."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 20, 3, generator=generator)
    noise = 0.1 * torch.randn(count, 20, generator=generator)
    targets = (inputs[..., 0] - 2 * inputs[..., 1] + noise).unsqueeze(-1)
    return list(zip(inputs, targets, strict=True))


def main() -> None:
    # Small models are faster so, by far where other programs run beside this one.
    torch.set_num_threads(1)
    rounds, clients = 60, people(600)
    # A client that took part may do so again after 6 rounds, 10 times in all; the ledger enforces it.
    participation = MinSeparation(min_separation=6, max_participations=10)
    mechanism = accounting.calibrate(toeplitz.square_root(rounds, bands=6), participation, epsilon=6.0, delta=1e-5)
    plan = RunPlan(rounds, participation, expected_cohort_size=100, mechanism=mechanism, clip_norm=0.5)
    population = SimulatedPopulation(clients, F.mse_loss, LocalTraining(batch_size=5, learning_rate=0.1))
    torch.manual_seed(0)
    model = Regression()
    test_inputs, test_targets = people(700)[699]
    print(accounting.guarantee(mechanism, plan.delta).sentence())
    for result in train(plan, population, model):
        if result.round_index % 10 == 9:
            with torch.no_grad():
                error = float(F.mse_loss(model(test_inputs), test_targets))
            print(f"round {result.round_index + 1}: epsilon {result.epsilon:.3f}, squared error {error:.3f}")


if __name__ == "__main__":
    main()
