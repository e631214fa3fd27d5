"""How good a model is: on public examples, for each client, and by private evaluations.

What :func:`fairness` and :func:`measured` compute from clients' examples has no noise: it is for the operator alone, and no
guarantee covers it.

A *private evaluation* samples clients, sums their numbers and releases the sum with noise, in a ledger of its own, as a round
does. The promise of the run counts one evaluation after each fixed number of its rounds. As the run's ledger begins each round
once, an evaluation is begun at most once after it: its cost follows from the rounds alone, whatever becomes of the folder
``evaluation``. An evaluation that a crash cut off is not repeated.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hubbub._util.checks import Array, integer
from hubbub._util.prf import derive, seed_key
from hubbub._util.strict_json import finite_only
from hubbub.accounting.events_of_mechanism import stated_relation
from hubbub.errors import DataError
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise
from hubbub.mechanism.private_evaluation import Estimate, PrivateEvaluation
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import Cohort, LatticeSum, Population, Values
from hubbub.training.cohorts import draw
from hubbub.training.release import ReleasePath
from hubbub.training.run_folder import EVALUATION, RunStore
from hubbub.training.simulation.faults import note, reason, require_own
from hubbub.training.simulation.functional import in_range, own_generators, seed_generators
from hubbub.training.simulation.local import Examples, Loss, own_loss

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
# The target of padding in a sequence, as torch's cross entropy has it.
_PADDED = -100


@dataclass(frozen=True)
class Spread:
    """One number for each client, summarised; each client counts the same, however many examples it has.

    A tenth of the clients is rounded up. Quantiles, by their probability as text, are linear between clients.
    """

    mean: float
    worst_tenth: float
    best_tenth: float
    quantiles: dict[str, float]

    @classmethod
    def of(cls, values: Array, *, higher_is_better: bool) -> "Spread":
        """The summary of ``(clients,)`` values; one that is not finite is worse than any other."""
        upwards = np.sort(np.where(np.isfinite(values), values, -np.inf if higher_is_better else np.inf))
        tenth = math.ceil(len(values) / 10)
        lowest, highest = float(upwards[:tenth].mean()), float(upwards[-tenth:].mean())
        worst, best = (lowest, highest) if higher_is_better else (highest, lowest)
        between = np.interp(np.multiply(QUANTILES, len(values) - 1), np.arange(len(values)), upwards).tolist()
        return cls(float(upwards.mean()), worst, best, {f"{p:g}": at for p, at in zip(QUANTILES, between, strict=True)})


@dataclass(frozen=True)
class Fairness:
    """How evenly a model serves the clients that have any example, by their own examples: private."""

    clients: int
    accuracy: Spread
    loss: Spread

    def as_json(self) -> dict[str, Any]:
        """All of it as strict JSON values, marked as private; what is not finite is ``None``."""
        return {"private": "computed from clients' data without noise; not for release", **finite_only(asdict(self))}


def evaluate(model: nn.Module, examples: Examples, loss: Loss, batch_size: int = 2000) -> tuple[float, float]:
    """Mean loss and accuracy of a classifier on public examples; of sequences, over all places that are not padded.

    Args:
        model: It stays as it is: a copy in evaluation mode is asked.
        examples: Inputs and targets; of sequences, targets ``(examples, length)`` with −100 where padded.
        loss: Mean loss of a batch from the module's output and the targets.
        batch_size: The most examples that pass through the model at once.

    Example:
        >>> inputs, targets = torch.eye(4), torch.tensor([0, 1, 2, 0])
        >>> round(evaluate(nn.Identity(), (inputs, targets), nn.functional.cross_entropy)[1], 2)
        0.75
    """
    integer("batch_size", batch_size, at_least=1)
    right, counted, lost = 0, 0, 0.0
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    # A module may write into itself when it is called: into its buffers, its weights or what it counts. Nothing of one client's
    # examples may reach the next client through it, nor the model.
    asked, own = deepcopy(model).eval(), own_loss(loss)
    with torch.no_grad(), in_range(device):
        for first in range(0, len(examples[0]), batch_size):
            # Copies: it may write into what it gets, too.
            inputs, wanted = (whole[first : first + batch_size].to(device, copy=True) for whole in examples)
            output = asked(inputs)
            known = wanted != _PADDED
            number = int(known.sum())
            if output.ndim > 1 and (likeliest := output.argmax(dim=1)).shape == wanted.shape:
                right += int(((likeliest == wanted) & known).sum())
            counted += number
            lost += float(own(output, wanted)) * number if number else 0.0
    return lost / max(1, counted), right / max(1, counted)


def fairness(model: nn.Module, clients: Sequence[Examples], loss: Loss, batch_size: int = 2000) -> Fairness:
    """Accuracy and loss of a classifier on each client's own examples, summarised; clients without examples are left out.

    Source: Li et al. 2020, "Fair Resource Allocation in Federated Learning", Table 1 (average, worst and best tenth),
    https://arxiv.org/abs/1905.10497.
    """
    with_examples = [examples for examples in clients if bool((examples[1] != _PADDED).any())]
    if not with_examples:
        raise DataError("clients: none has an example, so that nothing can be said of how evenly the model serves them")
    losses, accuracies = np.array([evaluate(model, examples, loss, batch_size) for examples in with_examples]).T
    return Fairness(
        clients=len(with_examples),
        accuracy=Spread.of(accuracies, higher_is_better=True),
        loss=Spread.of(losses, higher_is_better=False),
    )


def measured(model: nn.Module, examples: Callable[[], Examples], loss: Loss, who: str) -> dict[str, float] | None:
    """Accuracy, loss and number of examples of one client; ``None`` if it has none, or fails, which the operator's log says."""
    try:
        device = next(model.parameters()).device
        # What random layers, or the reading of examples, draw must not depend on who was measured before.
        with own_generators(device):
            seed_generators(0, device)
            own = examples()
            if not bool((own[1] != _PADDED).any()):
                return None
            mean_loss, accuracy = evaluate(model, own, loss)
        return {"accuracy": accuracy, "loss": mean_loss, "examples": float(len(own[0]))}
    except Exception as error:  # noqa: BLE001 # whatever it is that this client's examples raise
        require_own(error)
        note(who, reason(error))
        return None


def evaluation_promise(promise: Promise, first: str) -> Promise | None:
    """The promise of the ledger of a run's evaluations, if it has any; ``first`` is the first hash of the run's own ledger."""
    measured, hidden = promise.terms.evaluation, promise.evaluations(promise.rounds)
    if measured is None or hidden is None or promise.mechanism is None or not hidden[1]:
        return None
    mechanism, times = hidden
    return Promise(
        rounds=times,
        mechanism=mechanism,
        neighboring_relation=stated_relation(promise.mechanism.participation, promise.neighboring_relation),
        privacy_unit=promise.privacy_unit,
        accountant=promise.accountant,
        delta=promise.delta,
        simulation=promise.simulation,
        settings={"evaluation_of": first, "statistics": measured.record()["statistics"], "clip_norm": measured.norm},
    )


class Evaluations:
    """The evaluations of a run in progress; made by :meth:`of`."""

    def __init__(self, measured: PrivateEvaluation, path: ReleasePath) -> None:
        self.measured, self._path = measured, path
        self._lattice = Lattice(measured.norm)

    @classmethod
    @contextmanager
    def of(cls, ledger: Ledger, *, clients: int, seed: int, store: RunStore | None) -> Iterator["Evaluations | None"]:
        """The evaluations of a run, ready for the next one; ``None`` if its promise has none. ``seed`` is a simulation's."""
        promise, measured = evaluation_promise(ledger.promise, ledger.run), ledger.promise.terms.evaluation
        if promise is None or measured is None:
            yield None
            return
        own = store.evaluation() if store else None
        # Of a simulation: other draws than those of the rounds.
        apart = int.from_bytes(derive(seed_key(seed), EVALUATION)[:7])
        with own.locked() if own else nullcontext():
            path = ReleasePath(promise, measured.dim, clients=clients, seed=apart, store=own)
            path.start()
            if pending := path.ledger.pending():
                # Of a simulation that was cut off: a later evaluation has another sum.
                path.abort(pending)
            yield cls(measured, path)

    def after(
        self, round_index: int, population: Population, clients: Sequence[Hashable], model: nn.Module
    ) -> tuple[Estimate, ...]:
        """The released estimates after a round; empty if no evaluation follows it."""
        if not self.measured.due(round_index):
            return ()
        cohort = self.cohort(clients)
        answers = population.measure(cohort, model)
        if not isinstance(answers, Sequence):
            raise TypeError(
                f"round {round_index}: {type(population).__name__}.measure = {type(answers).__name__}: must be a list with the "
                "measurements of each client by name, in the order of the cohort, and None for one that does not answer"
            )
        return self.release(cohort, answers)

    def cohort(self, clients: Sequence[Hashable]) -> list[Hashable]:
        """The cohort of the next evaluation."""
        path, participation = self._path, self.measured.mechanism(1).participation
        return draw(participation, path.next_round, clients, 1, keys=path.cohort_keys, ledger=path.ledger)

    def release(self, cohort: Cohort, answers: Sequence[Values]) -> tuple[Estimate, ...]:
        """Sum the answers, each clipped, and release the sum with noise."""
        total = torch.zeros(self.measured.dim, dtype=torch.int64, device="cpu")
        for values in answers[: len(cohort)]:
            total += self._lattice.encode(torch.from_numpy(self.measured.encode(values)))[0]
        whole = LatticeSum(total, self._lattice, {})
        ticket = self._path.begin(cohort, whole, self._lattice.clip_norm)
        release = whole.open(self._path.row(ticket))
        self._path.commit(ticket, release)
        return self.measured.estimates(release.numpy())
