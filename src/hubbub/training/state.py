"""What a run carries from round to round beside its release path, and how it finds its place after an interruption."""

import hashlib
from dataclasses import dataclass

import torch
from torch import nn

from hubbub.errors import ConfigError
from hubbub.training.flat import FlatModel
from hubbub.training.plan import RunPlan
from hubbub.training.release import ReleasePath
from hubbub.training.store import RunStore

__all__ = ["RunState"]

CHECKPOINT_EVERY = 10


@dataclass
class RunState:
    """Model, optimizer and release path of a run in progress."""

    plan: RunPlan
    model: FlatModel
    optimizer: torch.optim.Optimizer
    path: ReleasePath
    store: RunStore | None

    @classmethod
    def start(
        cls,
        plan: RunPlan,
        module: nn.Module,
        store: RunStore | None,
        *,
        clients: int,
        head: str | None = None,
        noise_in_sums: bool = False,
    ) -> "RunState":
        """Begin a run, or go on with the one in the folder: from the last checkpoint, then by the releases since.

        ``noise_in_sums`` is as for :class:`.ReleasePath`.

        Raises:
            LedgerError: The folder holds another run, its record is damaged, was rolled back, or is closed.
            RunFolderError: A key, a checkpoint or a release is missing or is not this run's.
        """
        model = FlatModel(module)
        if store:
            store.begin_with(model.vector)
        first = hashlib.sha256(model.vector.detach().cpu().to(torch.float64).numpy().tobytes()).hexdigest()
        promise = plan.promise(clients=clients, parameters=model.dim, initial_model=first)
        path = ReleasePath(
            promise, model.dim, clients=clients, seed=plan.seed, store=store, head=head, noise_in_sums=noise_in_sums
        )
        run = cls(plan, model, plan.server.build(model.vector), path, store)
        done = store.load_checkpoint(model.vector, run.optimizer, path.noise, path.ledger) if store else 0
        # First all that is read, so that a folder that is refused stays as it is; a round under way is settled by the start.
        known = path.next_round
        for release in path.released(done, known):
            run.learn(release)
        path.start()
        for release in path.released(known, path.next_round):
            run.learn(release)
        return run

    def learn(self, release: torch.Tensor) -> None:
        """One step of the server's optimizer along the mean over the *expected* cohort size.

        Raises:
            ConfigError: The model is no longer finite; it is left as it was before.
        """
        self.model.require_views()
        vector = self.model.vector
        before = vector.detach().clone()
        vector.grad = (release / -self.plan.expected_cohort_size).to(vector.device, vector.dtype)
        self.optimizer.step()
        vector.grad = None
        if not bool(torch.isfinite(vector).all()):
            with torch.no_grad():
                vector.copy_(before)
            raise ConfigError(
                f"server_learning_rate = {self.plan.server.learning_rate!r}: the model is no longer finite after "
                f"{self.path.next_round} rounds, which stay released and charged; start a new run with a smaller one"
            )

    def checkpoint(self, rounds: int) -> None:
        """Save every few rounds and at the end; between, the releases themselves are what is kept."""
        if self.store and (rounds % CHECKPOINT_EVERY == 0 or rounds == self.plan.rounds):
            self.store.save_checkpoint(rounds, self.model.vector, self.optimizer, self.path.noise, self.path.ledger.head)
