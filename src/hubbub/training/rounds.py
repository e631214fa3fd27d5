"""The training loop, on one screen: sample, aggregate, record the cost, add noise, persist, update, yield.

A sum that cannot be opened aborts its round: the cost stays on record, and the model does not change.

``train`` is a generator: logging, evaluation, plots and early stopping are the body of the caller's ``for`` loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from hubbub._util.prf import fresh_key
from hubbub.errors import ConfigError, ParticipationError, RunFolderError, SumNotOpenedError
from hubbub.ledger.promise import Extends
from hubbub.mechanism.private_evaluation import Estimate
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import Cohort, LocalPopulation, NoSum, Population, Sum, require_sum
from hubbub.training.cohorts import counts_on_list, draw, require_distinct, require_feasible
from hubbub.training.evaluation import Evaluations
from hubbub.training.plan import Plan, RunPlan
from hubbub.training.ranks import Ranks, fingerprint, segments
from hubbub.training.release import ReleasePath
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.state import model_digest, optimizer_state, take_up
from hubbub.training.simulation.functional import FlatModel

# Aborted rounds in a row that end the run: so many are no chance.
MOST_ABORTED = 3
CHECKPOINT_EVERY = 10


@dataclass(frozen=True)
class RoundResult:
    """The result of a round: released, or aborted because its sum could not be opened.

    Args:
        round_index: t, from 0.
        clients: The size of the cohort, which is secret where cohorts are random: private, for the operator alone.
        epsilon: Spent by all rounds so far at the plan's delta; that of an aborted round stays spent.
        head: The hash of the ledger's last record: kept elsewhere, it reveals a ledger that was rolled back.
        seconds: Of the round; private, since it shows how many took part.
        statistics: Numbers computed from clients' updates; private.
        released: Whether there was a release, by which the model was updated.
        fault: The reason of an abort, which may name clients; private.
        clip_norm: The largest L2 norm of an update in this round; ``None`` if nothing was clipped.
        phases: The seconds of each phase (``sample``, ``aggregate``, ``record``, ``noise``, ``persist``, ``update``,
            ``account``); private.
        evaluation: The released estimates of the private evaluation after the round; empty if none was due.

    Example:
        >>> result = RoundResult(0, clients=30, epsilon=0.5, head="ab12", seconds=1.5, statistics={"train_loss": 0.7})
        >>> result.released, result.clients_per_second
        (True, 20.0)
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
    evaluation: tuple[Estimate, ...] = ()

    @property
    def clients_per_second(self) -> float:
        """Clients of the round per second."""
        return self.clients / self.seconds


def train(
    plan: RunPlan | Plan,
    population: Population,
    model: nn.Module,
    store: RunStore | None = None,
    *,
    head: str | None = None,
) -> Iterator[RoundResult]:
    """Train ``model`` in place, one result a round.

    Args:
        plan: A mechanism with a clip norm and delta; or all terms of the run, which follow from it for a number of clients.
        population: Where clients run.
        model: Any module without buffers; its parameters become views of one vector.
        store: The folder of ledger, releases and checkpoints; a run that stopped there resumes. Without one, all is in memory.
            Of several ranks, rank 0 alone opens it.
        head: A head of the ledger that was kept elsewhere: a folder that was rolled back behind it is refused.

    Yields:
        RoundResult: After the round's release is on disk and the model has been updated, or after it was aborted.

    Raises:
        TypeError: An argument of the wrong type; two of them may be swapped.
        ParticipationError: The clients cannot keep the promised pattern, one is listed twice, or the list of clients, on which
            the promise depends, has changed since the run began.
        LedgerError: The folder holds another run, or its record is damaged or was rolled back.
        RunFolderError: The folder is damaged, or another process works in it.
        ConfigError: The model has buffers or no trainable parameter; the noise in the population's sums or the unit that it
            clips is not what the plan promises; the clip norm moves and the population counts no indicators; an evaluation is
            planned and it measures nothing; or it changes the model.
        SumNotOpenedError: Three rounds in a row were aborted; the run can be resumed.
        RankError: Another process that shares the run failed, ended or has another plan or model; the run can be resumed.

    Example:
        >>> from hubbub.accounting import calibrate
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> from hubbub.training import SimulatedPopulation
        >>> clients = [(torch.randn(5, 3), torch.randint(2, (5,))) for _ in range(20)]
        >>> population = SimulatedPopulation(clients, nn.functional.cross_entropy)
        >>> mechanism = calibrate(rounds=3, participation=PoissonSampling(0.5), epsilon=2.0, delta=1e-3)
        >>> results = list(train(Plan(mechanism, clip_norm=1.0, delta=1e-3), population, nn.Linear(3, 2)))
        >>> [result.round_index for result in results], results[-1].epsilon <= 2.0
        ([0, 1, 2], True)
    """
    for name, value, kinds, what in (
        ("plan", plan, (Plan, RunPlan), "Plan or a RunPlan"),
        ("population", population, Population, "Population"),
        ("model", model, nn.Module, "torch.nn.Module"),
        ("store", store, RunStore | None, "hubbub.RunStore(folder)"),
    ):
        if not isinstance(value, kinds):
            raise TypeError(
                f"{name}: is a {type(value).__name__}, must be a {what}; the order is train(plan, population, model, store)"
            )
    clients = _listed(population)
    if isinstance(plan, Plan):
        plan = plan.for_clients(len(clients), population.privacy_unit)
    elif plan.mechanism and (plan.privacy_unit, population.privacy_unit) == ("client", "example"):
        raise ConfigError(
            f"privacy_unit = 'client': a {type(population).__name__} clips single examples, and the plan promises to hide all "
            "data of a client; say privacy_unit='example', or take a population that clips clients"
        )
    elif plan.mechanism and isinstance(population, LocalPopulation) and plan.privacy_unit != population.privacy_unit:
        # One example more or less moves a client's update by up to two clip norms. Others may leave the unit to the plan.
        raise ConfigError(
            f"privacy_unit = 'example': a {type(population).__name__} clips clients, and the plan promises to hide single "
            "examples; say privacy_unit='client', or take an ExamplePopulation"
        )
    if plan.evaluation and type(population).measure is Population.measure:
        # Refuses, before any cost.
        population.measure((), model)
    if plan.clip_norms.further and not population.takes_split:
        raise ConfigError(
            f"clip_norm: adaptive clipping needs each client's indicator in the sum, and {type(population).__name__} takes no "
            "split; take a population with takes_split, or a clip norm that stands still"
        )
    require_distinct(clients)
    require_feasible(plan.participation, plan.rounds, len(clients), plan.expected_cohort_size)
    ranks = population.ranks
    if not ranks.leads:
        store = None
    with store.locked() if store else nullcontext():
        noisy = population.noise_in_sums
        run = RunState.start(plan, model, store, clients=clients, head=head, noise_in_sums=noisy, ranks=ranks)
        run.require_same_model("before its first round")
        if plan.mechanism is not None and plan.noise == "secure":
            population.draw_under(ranks.lead(fresh_key))
        # By the expected size, which is public: the size of a real cohort must not decide how updates are computed.
        population.prepare(model, math.ceil(plan.expected_cohort_size))
        run.require_same_model(f"by {type(population).__name__}.prepare")
        of_run = Evaluations.of(run.path.ledger, clients=len(clients), seed=plan.seed, store=store) if ranks.leads else None
        with of_run or nullcontext() as evaluations:
            yield from _rounds(run, population, clients, evaluations)


def _listed(population: Population) -> Sequence[Hashable]:
    clients = population.clients
    return clients if isinstance(clients, range) else tuple(clients)


def _rounds(
    run: RunState, population: Population, clients: Sequence[Hashable], evaluations: Evaluations | None
) -> Iterator[RoundResult]:
    plan, path, ranks, aborted = run.plan, run.path, run.ranks, 0
    for round_index in range(path.next_round, plan.rounds):
        run.require_same_model("between rounds")
        clock = Phases()
        listed = _listed(population)
        if listed != clients and counts_on_list(plan.participation):
            raise ParticipationError(
                f"round {round_index}: the population lists {len(listed)} clients, others than the {len(clients)} that the run "
                f"began with; the cost of {plan.participation} assumes one list that stays: resume with the clients of before, "
                "or start a new run"
            )
        cohort = run.cohort(round_index, listed)
        clock.end("sample")
        clip_norm = run.clip_norm
        # The processor is free while a GPU computes.
        if torch.cuda.is_initialized():
            path.prepare_row()
        # A copy: a population that removes clients from it does not change who took part.
        total, fault = run.collect(population, list(cohort), round_index), None
        run.require_same_model(f"by {type(population).__name__}.collect")
        clock.end("aggregate")
        ticket = path.begin(cohort, total, plan.clip_norms.bound(clip_norm))
        clock.end("record")
        try:
            release = total.open(path.row(ticket))
        except SumNotOpenedError as error:
            clock.end("noise")
            path.abort(ticket)
            aborted, fault = aborted + 1, error
        else:
            clock.end("noise")
            path.commit(ticket, release)
            clock.end("persist")
            run.update(release, round_index)
            clock.end("update")
            aborted = 0
        run.checkpoint(round_index + 1)
        clock.end("persist")
        epsilon, head = ranks.lead(lambda: (path.ledger.spent(plan.delta).epsilon, path.ledger.head))
        clock.end("account")
        seconds = clock.total
        found = ranks.lead(lambda: evaluations.after(round_index, population, listed, run.model.module) if evaluations else ())  # noqa: B023
        run.require_same_model(f"by {type(population).__name__}.measure")
        if found:
            clock.end(EVALUATE)
        yield RoundResult(
            round_index=round_index,
            clients=len(cohort),
            epsilon=epsilon,
            head=head,
            seconds=seconds,
            statistics=total.statistics,
            released=fault is None,
            fault="" if fault is None else str(fault),
            clip_norm=clip_norm,
            phases=clock.seconds,
            evaluation=found,
        )
        if fault and aborted == MOST_ABORTED:
            raise SumNotOpenedError(
                f"{fault} (the last {aborted} rounds were aborted: their cost stays, and the model is as before them; remove "
                "the cause, and resume the run from here)",
                fault.who,
            ) from fault


@dataclass
class RunState:
    """Model, optimizer, release path and the next round's clip norm of a run in progress."""

    plan: RunPlan
    model: FlatModel
    optimizer: torch.optim.Optimizer
    path: ReleasePath
    store: RunStore | None
    clip_norm: float | None
    ranks: Ranks = field(default_factory=Ranks)
    # The model after the last release, and the versions of its frozen parameters.
    _known: tuple[torch.Tensor, list[tuple[int, int]]] | None = None

    @classmethod
    def start(
        cls,
        plan: RunPlan,
        module: nn.Module,
        store: RunStore | None,
        *,
        clients: Sequence[Hashable],
        head: str | None = None,
        noise_in_sums: bool = False,
        ranks: Ranks | None = None,
    ) -> RunState:
        """Begin a run, or resume the one in the folder from the last checkpoint and the releases since.

        ``noise_in_sums`` and ``ranks`` are as for :class:`.ReleasePath`; every rank ends with the state of rank 0.
        """
        ranks = ranks or Ranks()
        model = FlatModel(module)
        ranks.require_same("model", lambda: _fixed(module))
        optimizer = plan.server.build(model.vector)
        ranks.lead(lambda: take_up(Extends.of(plan.settings), model.vector, optimizer, store.folder if store else None))
        ranks.share(model.vector)
        promise = plan.promise(clients=len(clients), parameters=model.dim, initial_model=model_digest(model.vector))
        path = ReleasePath(
            promise,
            model.dim + plan.clip_norms.further,
            clients=len(clients),
            seed=plan.seed,
            store=store,
            head=head,
            noise_in_sums=noise_in_sums,
            ranks=ranks,
            listed=clients if counts_on_list(plan.participation) else None,
        )
        run = cls(plan, model, optimizer, path, store, plan.clip_norms.first, ranks)
        done = ranks.lead(lambda: run._restored(store) if store else 0)
        # Read everything first, so that a refused folder is not changed; path.start settles a round in progress.
        known = path.next_round
        ranks.lead(lambda: run._update_again(done, known))
        path.start()
        ranks.lead(lambda: run._update_again(known, path.next_round))
        run._follow()
        return run

    def cohort(self, round_index: int, clients: Sequence[Hashable]) -> list[Hashable]:
        """The cohort of a round, sampled by rank 0."""
        size, drawn, path = self.plan.expected_cohort_size, self.plan.participation, self.path
        return self.ranks.lead(lambda: draw(drawn, round_index, clients, size, keys=path.cohort_keys, ledger=path.ledger))

    def collect(self, population: Population, cohort: Cohort, round_index: int) -> Sum:
        """The sum of a round, or a ``NoSum`` if none could be formed: clients took part all the same."""
        norms = self.plan.clip_norms
        try:
            total = population.collect(cohort, self.model.module, self.clip_norm, round_index, norms.split)
            require_sum(total, f"round {round_index}: {type(population).__name__}.collect")
            return total
        except SumNotOpenedError as error:
            bound = norms.bound(self.clip_norm)
            return NoSum(None if bound is None else Lattice(bound, self.plan.lattice_bits), error)

    def _follow(self) -> None:
        """Take up the state of rank 0, or this rank's part of it."""
        ranks, vector = self.ranks, self.model.vector
        ranks.share(vector)
        state, self.clip_norm = ranks.lead(lambda: (optimizer_state(self.optimizer, vector), self.clip_norm))
        if ranks.shard_optimizer:
            first, stop = segments(self.model.dim, ranks.size)[ranks.rank]
            vector = vector.detach()[first:stop].requires_grad_()
            self.optimizer = self.plan.server.build(vector)
            state = {name: value[first:stop].clone() if value.ndim else value for name, value in state.items()}
        if state and (ranks.shard_optimizer or not ranks.leads):
            self.optimizer.state[vector] = state

    def _update_again(self, start: int, stop: int) -> None:
        """Take the steps of these rounds again, by rank 0 alone, whose optimizer is still whole."""
        for round_index in range(start, stop):
            for release in self.path.released(round_index, round_index + 1):
                self.clip_norm = server_step(self.plan, self.model, self.optimizer, self.clip_norm, release, round_index)

    def _restored(self, store: RunStore) -> int:
        """Restore the last checkpoint, if there is one; returns its number of rounds."""
        checkpoint = store.load_checkpoint(self.path.ledger)
        if checkpoint is None:
            return 0
        checkpoint.restore(self.model.vector, self.optimizer)
        clip_norm = checkpoint.clip_norm
        if (clip_norm is None) == bool(self.plan.clip_norms.further):
            raise RunFolderError(
                f"state/checkpoint-{checkpoint.rounds}.safetensors: its clip_norm = {clip_norm} is not of this run's kind"
            )
        self.clip_norm = self.clip_norm if clip_norm is None else clip_norm
        return checkpoint.rounds

    def require_same_model(self, who: str) -> None:
        """Refuse a model that anything but a release has changed, and restore its trained parameters."""
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
        fixed = (p for p in self.model.module.parameters() if not p.requires_grad)
        return [(t.data_ptr(), t._version) for t in (*fixed, *self.model.module.buffers())]

    def update(self, release: torch.Tensor, round_index: int) -> None:
        """Take one :func:`server_step` along a release."""
        self.clip_norm = server_step(
            self.plan, self.model, self.optimizer, self.clip_norm, release, round_index, ranks=self.ranks
        )
        self._known = self._known and self._as_it_is()

    def checkpoint(self, rounds: int) -> None:
        """Save the state every few rounds and at the end; in between, the releases are on disk."""
        if rounds % CHECKPOINT_EVERY == 0 or rounds == self.plan.rounds:
            state = self._optimizer_state()
            self.ranks.lead(lambda: self._save(rounds, state))

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        """The state of the optimizer, made of all ranks' parts."""
        (trained,) = self.optimizer.param_groups[0]["params"]
        state = optimizer_state(self.optimizer, trained)
        if not self.ranks.shard_optimizer:
            return state
        ranges = segments(self.model.dim, self.ranks.size)
        first, stop = ranges[self.ranks.rank]
        whole = {}
        for name, value in state.items():
            whole[name] = value if value.ndim == 0 else value.new_zeros(self.model.dim)
            if value.ndim:
                whole[name][first:stop] = value
                self.ranks.complete(whole[name], ranges)
        return whole

    def _save(self, rounds: int, state: dict[str, torch.Tensor]) -> None:
        if self.store:
            moved = self.clip_norm if self.plan.clip_norms.further else None
            self.path.make_room()
            self.path.keep_noise()
            self.store.save_checkpoint(rounds, self.model.vector, state, self.path.ledger.head, clip_norm=moved)


def _fixed(module: nn.Module) -> str:
    """A digest of what no release changes: names, shapes and dtypes, frozen parameters and buffers."""
    forms = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in module.named_parameters()]
    return fingerprint(str(module), forms, *(p for p in module.parameters() if not p.requires_grad), *module.buffers())


def server_step(
    plan: RunPlan,
    model: FlatModel,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    release: torch.Tensor,
    round_index: int,
    ranks: Ranks | None = None,
) -> float | None:
    """Take one step of the server's optimizer along the mean over the *expected* cohort size; returns the next clip norm.

    Model, optimizer and clip norm are functions of the releases alone. With ``ranks.shard_optimizer`` the optimizer is of this
    rank's part of the model.
    """
    model.require_views()
    vector, (trained,) = model.vector, optimizer.param_groups[0]["params"]
    before, first = vector.detach().clone(), trained.storage_offset() - vector.storage_offset()
    mean = release[first : first + len(trained)] / -plan.expected_cohort_size
    trained.grad = mean.to(vector.device, vector.dtype)
    rate = plan.server.learning_rate * plan.server.rate(round_index, plan.scheduled_rounds)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    trained.grad = None
    if ranks and ranks.shard_optimizer:
        ranks.complete(vector, segments(model.dim, ranks.size))
    if not bool(torch.isfinite(vector).all()):
        with torch.no_grad():
            vector.copy_(before)
        name = "learning_rate" if plan.privacy_unit == "example" else "server_learning_rate"
        raise ConfigError(
            f"{name} = {plan.server.learning_rate!r}: the model is no longer finite after "
            f"{round_index + 1} rounds, which stay released, and whose cost stays spent; start a new run with a smaller one"
        )
    return plan.clip_norms.following(clip_norm, release)


# In the order of the loop.
_PHASES = ("sample", "aggregate", "record", "noise", "persist", "update", "account")
# Time of evaluations, which are no part of a round.
EVALUATE = "evaluate"


class Phases:
    """Seconds of one round by phase; laps of one phase add up.

    On an accelerator, work that one phase starts may be waited for in the next.
    """

    def __init__(self) -> None:
        self._started = self._lapped = time.perf_counter()
        self.seconds = dict.fromkeys(_PHASES, 0.0)

    def end(self, phase: str) -> None:
        """Add the time since the last lap, or since the start, to a phase."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._lapped
        self._lapped = now

    @property
    def total(self) -> float:
        """Seconds from the start to the last lap: the sum of all phases."""
        return self._lapped - self._started
