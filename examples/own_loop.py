"""A training loop of your own, in which every single image is private: DP-FTRL in a fixed order, without random batches.

``private_gradients`` makes the sum of a batch's clipped gradients, and a ``ReleasePath`` is the one way from there to what may
be looked at: it records the cost of the step, adds its row of correlated noise, and refuses an image that comes more often
than promised.

    python examples/own_loop.py
    torchrun --nproc-per-node 2 examples/own_loop.py    # the same releases, made by two processes
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import accounting, factorization
from hubbub.datasets import digits
from hubbub.ledger.promise import Promise
from hubbub.mechanism.participation import FixedEpochs
from hubbub.mechanism.workloads import momentum
from hubbub.training import Ranks, ReleasePath, private_gradients

EPOCHS, STEPS, CLIP_NORM, DELTA = 10, 8, 1.0, 1e-4


def main() -> None:
    # Small models are faster so, by far where other programs run beside this one.
    torch.set_num_threads(1)
    data, rounds = digits.load(), EPOCHS * STEPS
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    # Every image once in each epoch, at the same step; noise for what SGD with this momentum makes of the steps.
    participation = FixedEpochs(EPOCHS, rounds_per_epoch=STEPS)
    strategy = factorization.toeplitz.optimize(momentum(rounds, 0.9), bands=STEPS, participation=participation).strategy
    mechanism = accounting.calibrate(strategy, participation, epsilon=8.0, delta=DELTA)
    promise = Promise(rounds, mechanism, privacy_unit="example", delta=DELTA, settings={"clip_norm": CLIP_NORM})
    order = torch.randperm(len(data.train_inputs))
    batch_size = len(order) / STEPS
    # One rank, unless a launcher started several processes: then all of them execute this program.
    ranks = Ranks.launched()
    path = ReleasePath(promise, sum(p.numel() for p in model.parameters()), clients=len(order), ranks=ranks)
    path.start()

    for step in range(rounds):
        batch = order[step % STEPS :: STEPS]
        inputs, targets = data.train_inputs[batch], data.train_targets[batch]
        total = private_gradients(model, F.cross_entropy, inputs, targets, CLIP_NORM, ranks=ranks)
        ticket = path.begin(batch.tolist(), total, CLIP_NORM)
        release = total.open(path.row(ticket))
        path.commit(ticket, release)
        # From here on nothing is secret. The divisor is a fixed number, not how many came.
        mean = (release / batch_size).float().split([p.numel() for p in model.parameters()])
        for parameter, gradient in zip(model.parameters(), mean, strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
        if step % STEPS == STEPS - 1 and ranks.leads:
            right = model(data.test_inputs).argmax(dim=1) == data.test_targets
            spent = path.ledger.spent(DELTA).epsilon
            print(f"epoch {step // STEPS + 1}: accuracy {right.double().mean():.1%}, epsilon {spent:.2f}")
    if ranks.leads:
        print(path.ledger.spent(DELTA).sentence())


if __name__ == "__main__":
    main()
