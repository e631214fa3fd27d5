"""What a run carries from round to round beside its release path, and how it finds its place after an interruption."""

from dataclasses import dataclass

import torch
from torch import nn

from hubbub.errors import ConfigError, RunFolderError
from hubbub.training.flat import FlatModel
from hubbub.training.plan import RunPlan
from hubbub.training.release import ReleasePath
from hubbub.training.start import model_digest, take_up
from hubbub.training.store import RunStore

__all__ = ["RunState", "learnt"]

CHECKPOINT_EVERY = 10


@dataclass
class RunState:
    """Model, optimizer, release path and the next round's clip norm of a run in progress."""

    plan: RunPlan
    model: FlatModel
    optimizer: torch.optim.Optimizer
    path: ReleasePath
    store: RunStore | None
    clip_norm: float | None
    # The model as releases alone have made it, and how often each of its frozen parameters was written to.
    _known: tuple[torch.Tensor, list[tuple[int, int]]] | None = None

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
        optimizer = plan.server.build(model.vector)
        take_up(plan.settings, model.vector, optimizer, store)
        promise = plan.promise(clients=clients, parameters=model.dim, initial_model=model_digest(model.vector))
        dim = model.dim + plan.clip_norms.further
        path = ReleasePath(promise, dim, clients=clients, seed=plan.seed, store=store, head=head, noise_in_sums=noise_in_sums)
        run = cls(plan, model, optimizer, path, store, plan.clip_norms.first)
        done = run._restored(store) if store else 0
        # First all that is read, so that a folder that is refused stays as it is; a round under way is settled by the start.
        known = path.next_round
        run._learn_again(done, known)
        path.start()
        run._learn_again(known, path.next_round)
        return run

    def _learn_again(self, start: int, stop: int) -> None:
        """Learn from what is on disk."""
        for round_index in range(start, stop):
            for release in self.path.released(round_index, round_index + 1):
                self.learn(release, round_index)

    def _restored(self, store: RunStore) -> int:
        """Take up the last checkpoint, where there is one; returns how many rounds it holds."""
        done, clip_norm = store.load_checkpoint(self.model.vector, self.optimizer, self.path.noise, self.path.ledger)
        if done and (clip_norm is None) == bool(self.plan.clip_norms.further):
            raise RunFolderError(f"state/checkpoint-{done}.safetensors: its clip_norm = {clip_norm} is not of this run's kind")
        self.clip_norm = self.clip_norm if clip_norm is None else clip_norm
        return done

    def require_same_model(self, who: str) -> None:
        """Refuse a model that anything but releases has changed, and put its trained parameters back.

        Raises:
            ConfigError: It was; ``who`` says by whom.
        """
        self.model.require_views()
        vector, written = self._known = self._known or self._as_it_is()
        if torch.equal(self.model.vector, vector) and written == self._written():
            return
        with torch.no_grad():
            self.model.vector.copy_(vector)
        raise ConfigError(
            f"model: was changed {who}, and by no release, so that it would carry what no noise hides; train a copy of it "
            "(copy.deepcopy), and leave the model itself to the run"
        )

    def _as_it_is(self) -> tuple[torch.Tensor, list[tuple[int, int]]]:
        return self.model.vector.detach().clone(), self._written()

    def _written(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.model.module.parameters() if not p.requires_grad]

    def learn(self, release: torch.Tensor, round_index: int) -> None:
        """One step along a release, as :func:`learnt` takes it."""
        self.clip_norm = learnt(self.plan, self.model, self.optimizer, self.clip_norm, release, round_index)
        self._known = self._known and self._as_it_is()

    def checkpoint(self, rounds: int) -> None:
        """Save every few rounds and at the end; between, the releases themselves are what is kept."""
        if self.store and (rounds % CHECKPOINT_EVERY == 0 or rounds == self.plan.rounds):
            moved = self.clip_norm if self.plan.clip_norms.further else None
            self.store.save_checkpoint(
                rounds, self.model.vector, self.optimizer, self.path.noise, self.path.ledger.head, clip_norm=moved
            )


def learnt(
    plan: RunPlan,
    model: FlatModel,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    release: torch.Tensor,
    round_index: int,
) -> float | None:
    """One step of the server's optimizer along the mean over the *expected* cohort size; answers with the next clip norm.

    Model, optimizer and clip norm are functions of the releases alone.

    Raises:
        ConfigError: The model is no longer finite; it is left as it was before.
    """
    model.require_views()
    vector = model.vector
    before = vector.detach().clone()
    vector.grad = (release[: model.dim] / -plan.expected_cohort_size).to(vector.device, vector.dtype)
    rate = plan.server.learning_rate * plan.server.rate(round_index, plan.scheduled_rounds)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    vector.grad = None
    if not bool(torch.isfinite(vector).all()):
        with torch.no_grad():
            vector.copy_(before)
        name = "learning_rate" if plan.privacy_unit == "example" else "server_learning_rate"
        raise ConfigError(
            f"{name} = {plan.server.learning_rate!r}: the model is no longer finite after "
            f"{round_index + 1} rounds, which stay released and charged; start a new run with a smaller one"
        )
    return plan.clip_norms.following(clip_norm, release)
