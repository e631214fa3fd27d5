"""The training loop, on one screen: choose, sum, promise, hide, persist, learn, yield.

A sum that nobody could open burns its round: it is charged, and the model stays as it was.

``train`` is a generator: logging, evaluation, plots and early stopping are the body of the caller's ``for`` loop.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from torch import nn

from hubbub.errors import ConfigError, ParticipationError, SumNotOpenedError
from hubbub.lattice import Lattice
from hubbub.training.aggregate import NoSum, Population, Sum
from hubbub.training.cohorts import counts_on_list, draw, require_distinct, require_feasible
from hubbub.training.phases import Phases
from hubbub.training.plan import RunPlan
from hubbub.training.state import RunState
from hubbub.training.store import RunStore

__all__ = ["MOST_BURNED", "RoundResult", "train"]

# So many rounds that are burned one after the other do not come from chance.
MOST_BURNED = 3


@dataclass(frozen=True)
class RoundResult:
    """One round, after its release, or after it was burned since its sum could not be opened: then ``fault`` says why.

    ``clip_norm`` is that of the round's updates. ``head`` is that of the ledger: keep it elsewhere, and a ledger that is rolled
    back cannot pass. ``statistics`` were computed from clients' updates, and ``fault`` may name clients: they are private, and
    not for others. So are ``seconds`` and ``phases``, the same by phase (``choose``, ``sum``, ``promise``, ``hide``,
    ``persist``, ``learn``, ``account``): they tell how many took part.
    """

    round_index: int
    clients: int
    epsilon: float
    head: str
    seconds: float
    statistics: Mapping[str, float]
    released: bool = True
    fault: str = ""
    clip_norm: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def clients_per_second(self) -> float:
        """How fast the round was."""
        return self.clients / self.seconds


def train(
    plan: RunPlan, population: Population, model: nn.Module, store: RunStore | None = None, *, head: str | None = None
) -> Iterator[RoundResult]:
    """Train ``model`` in place, one result a round.

    Args:
        plan: What to do.
        population: Where clients run.
        model: Any module without buffers; its parameters become views of one vector.
        store: A folder that keeps ledger, releases and checkpoints; a run that stopped there goes on where it was. Without
            one, all is kept in memory.
        head: The ledger's head that somebody kept: a folder that was rolled back behind it is refused.

    Yields:
        RoundResult: After the round's release is on disk and the model has learnt from it, or after it was burned.

    Raises:
        ParticipationError: The clients cannot keep the promised pattern, one is listed twice, or the list is another one than
            the run began with, where what is promised counts on it.
        LedgerError: The folder holds another run, or its record is damaged or was rolled back.
        RunFolderError: The folder is damaged, or another process is at work in it.
        ConfigError: The model has buffers or no trainable parameter, or the population's sums do not hold the noise that the
            plan promises, or hold some that it does not, or the clip norm moves and the population counts no indicators.
        SumNotOpenedError: Three rounds in a row were burned; the run can go on.
    """
    if plan.clip_norms.further and not population.takes_split:
        raise ConfigError(
            f"clip_norm: adaptive clipping needs each client's indicator in the sum, and {type(population).__name__} takes no "
            "split; take a population with takes_split, or a clip norm that stands still"
        )
    clients = _listed(population)
    require_distinct(clients)
    require_feasible(plan.participation, plan.rounds, len(clients), plan.expected_cohort_size)
    with store.locked() if store else nullcontext():
        if store and counts_on_list(plan.participation):
            store.require_same_clients(clients)
        run = RunState.start(plan, model, store, clients=len(clients), head=head, noise_in_sums=population.noise_in_sums)
        # For the size that is public: how many come in the first round must not decide how everybody's update is computed.
        population.prepare(model, math.ceil(plan.expected_cohort_size))
        yield from _rounds(plan, population, clients, model, run)


def _listed(population: Population) -> Sequence[Hashable]:
    """The clients as they are listed now, whatever becomes of the list."""
    clients = population.clients
    return clients if isinstance(clients, range) else tuple(clients)


def _rounds(
    plan: RunPlan, population: Population, clients: Sequence[Hashable], model: nn.Module, run: RunState
) -> Iterator[RoundResult]:
    path, burned = run.path, 0
    for round_index in range(path.next_round, plan.rounds):
        run.require_same_model("between rounds")
        clock = Phases()
        listed = _listed(population)
        if listed != clients and counts_on_list(plan.participation):
            raise ParticipationError(
                f"round {round_index}: the population lists {len(listed)} clients, others than the {len(clients)} that the run "
                f"began with; {plan.participation} is charged for one list that stays: go on with the clients of before, or "
                "start a new run"
            )
        cohort = draw(
            plan.participation,
            round_index,
            listed,
            plan.expected_cohort_size,
            keys=path.cohort_keys,
            ledger=path.ledger,
        )
        clock.end("choose")
        clip_norm = run.clip_norm
        # A list of its own: whom a population strikes off took part all the same.
        total, fault = _collected(plan, population, list(cohort), model, clip_norm, round_index), None
        run.require_same_model(f"by {type(population).__name__}.collect")
        clock.end("sum")
        ticket = path.begin(cohort, total, plan.clip_norms.bound(clip_norm))
        clock.end("promise")
        try:
            release = total.open(path.row(ticket))
        except SumNotOpenedError as error:
            clock.end("hide")
            path.burn(ticket)
            burned, fault = burned + 1, error
        else:
            clock.end("hide")
            path.commit(ticket, release)
            clock.end("persist")
            run.learn(release, round_index)
            clock.end("learn")
            burned = 0
        run.checkpoint(round_index + 1)
        clock.end("persist")
        epsilon = path.ledger.spent(plan.delta).epsilon
        clock.end("account")
        yield RoundResult(
            round_index=round_index,
            clients=len(cohort),
            epsilon=epsilon,
            head=path.ledger.head,
            seconds=clock.total,
            statistics=total.statistics,
            released=fault is None,
            fault="" if fault is None else str(fault),
            clip_norm=clip_norm,
            phases=clock.seconds,
        )
        if fault and burned == MOST_BURNED:
            raise SumNotOpenedError(
                f"{fault} (the last {burned} rounds were burned: they are charged, and the model is as before them; see to the "
                "cause, and the run can go on from here)",
                fault.who,
            ) from fault


def _collected(
    plan: RunPlan,
    population: Population,
    cohort: Sequence[Hashable],
    model: nn.Module,
    clip_norm: float | None,
    round_index: int,
) -> Sum:
    """The sum of a round; where none could be formed, what stands for it, since clients took part all the same."""
    try:
        return population.collect(cohort, model, clip_norm, round_index, plan.clip_norms.split)
    except SumNotOpenedError as error:
        bound = plan.clip_norms.bound(clip_norm)
        return NoSum(None if bound is None else Lattice(bound, plan.lattice_bits), error)
