"""Private evaluations of a run: drawn, summed, noised, recorded and kept as its rounds are, in a ledger of their own.

The promise of the run counts one evaluation after each so many of its rounds. An evaluation is begun at most once after each of
these, since the run's ledger lets each round be released once: so its cost is known from the rounds alone, whatever becomes of
the folder ``evaluation``. One that a crash cut off is not made again.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from hubbub._util.prf import derive, seed_key
from hubbub.accounting.events_of_mechanism import stated_relation
from hubbub.errors import LedgerError
from hubbub.ledger.ledger import Ledger
from hubbub.ledger.promise import Promise
from hubbub.mechanism.private_evaluation import Estimate, PrivateEvaluation
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import LatticeSum, Population, Values
from hubbub.training.cohorts import draw
from hubbub.training.release import ReleasePath
from hubbub.training.run_folder import EVALUATION, RunStore

__all__ = ["Evaluations", "evaluation_promise"]


def evaluation_promise(promise: Promise, first: str) -> Promise | None:
    """What the ledger of a run's evaluations promises; ``None`` for a run without any.

    Args:
        promise: Of the run.
        first: Hash of the first record of its ledger.
    """
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
    """The evaluations of a run that is at work; make it by :meth:`of`."""

    def __init__(self, measured: PrivateEvaluation, path: ReleasePath) -> None:
        self._measured, self._path = measured, path
        self._lattice = Lattice(measured.norm)

    @classmethod
    @contextmanager
    def of(cls, ledger: Ledger, *, clients: int, seed: int, store: RunStore | None) -> Iterator["Evaluations | None"]:
        """Those of a run, ready for the next one; ``None`` where its promise has none.

        Args:
            ledger: Of the run.
            clients: How many there are.
            seed: Of a simulation.
            store: Of the run.

        Raises:
            LedgerError: The record of the evaluations is damaged, of another run, or goes further than the run.
        """
        promise, measured = evaluation_promise(ledger.promise, ledger.run), ledger.promise.terms.evaluation
        if promise is None or measured is None:
            yield None
            return
        own = RunStore(store.folder / EVALUATION) if store else None
        # A draw of its own, in a simulation, too.
        apart = int.from_bytes(derive(seed_key(seed), EVALUATION)[:7])
        with own.locked() if own else nullcontext():
            path = ReleasePath(promise, measured.dim, clients=clients, seed=apart, store=own)
            if path.next_round > measured.times(len(ledger.rounds)):
                raise LedgerError(
                    f"{EVALUATION}/ledger.jsonl: holds {path.next_round} evaluations, and the run has had "
                    f"{len(ledger.rounds)} rounds: the run's ledger was rolled back; restore it"
                )
            path.start()
            yield cls(measured, path)

    def after(
        self, round_index: int, population: Population, clients: Sequence[Hashable], model: nn.Module
    ) -> tuple[Estimate, ...]:
        """What clients that are drawn now say of the model; empty where no evaluation follows this round.

        Raises:
            ConfigError: The population measures nothing.
        """
        if not self.due(round_index):
            return ()
        cohort = self.cohort(clients)
        return self.release(cohort, population.measure(cohort, model))

    def due(self, round_index: int) -> bool:
        """Whether an evaluation follows this round."""
        return self._measured.due(round_index)

    def cohort(self, clients: Sequence[Hashable]) -> list[Hashable]:
        """Whom the next one asks."""
        path, participation = self._path, self._measured.mechanism(1).participation
        return draw(participation, path.next_round, clients, 1, keys=path.cohort_keys, ledger=path.ledger)

    def release(self, cohort: Sequence[Hashable], answers: Sequence[Values]) -> tuple[Estimate, ...]:
        """Sum what clients answered, each once, and release it with noise."""
        total = torch.zeros(self._measured.dim, dtype=torch.int64)
        for values in answers[: len(cohort)]:
            total += self._lattice.encode(torch.from_numpy(self._measured.encode(values)))[0]
        whole = LatticeSum(total, self._lattice, {})
        ticket = self._path.begin(cohort, whole, self._lattice.clip_norm)
        release = whole.open(self._path.row(ticket))
        self._path.commit(ticket, release)
        return self._measured.estimates(release.numpy())
