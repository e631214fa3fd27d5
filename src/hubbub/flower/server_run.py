"""A private run on a Flower grid: begins a round, finishes it, and evaluates under noise."""

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError, ParticipationError, RunFolderError, SumNotOpenedError
from hubbub.flower.arrays import Layout
from hubbub.flower.messages import (
    Identity,
    RoundMessages,
    addressed,
    clients_of,
    cohort,
    configured,
    first_config,
    quiet_strategy,
    stated_numbers,
)
from hubbub.flower.options import Options
from hubbub.flower.separation import separation_config
from hubbub.flower.state import MOST_CLIENTS, ServerState
from hubbub.flower.summing import Summing
from hubbub.ledger.ledger import Ticket
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.private_evaluation import Estimate
from hubbub.training.aggregate import NoSum
from hubbub.training.clipping import AdaptiveClipping, ClipNorms, Clipping
from hubbub.training.rounds import MOST_ABORTED

if TYPE_CHECKING:
    from hubbub.flower.secagg_server import EncryptedSumming, GridHolders

_LOG = logging.getLogger("flwr")


@dataclass(frozen=True)
class _Round:
    ticket: Ticket
    messages: RoundMessages
    summing: "Summing | EncryptedSumming"
    arrays: ArrayRecord


class PrivateRun:
    """An open run; ``arrays`` is the model after the rounds so far, ``None`` before the first."""

    def __init__(
        self,
        strategy: Strategy,
        mechanism: Mechanism,
        clipping: Clipping,
        options: Options,
        layout: Layout,
        expected_cohort_size: float,
        identity: Identity,
    ) -> None:
        if layout.buffers and options.buffers == "error":
            raise ConfigError(
                f"initial_arrays: has buffers ({', '.join(layout.buffers[:3])}), which are neither clipped nor noised; replace "
                "the layer (by GroupNorm, say), or say buffers='keep', and they stay as they are for the whole run"
            )
        self.layout = layout
        self.expected_cohort_size = expected_cohort_size
        self._identity: Identity = identity
        self._strategy, self._mechanism, self._clipping, self._options = strategy, mechanism, clipping, options
        self._norms = ClipNorms(clipping, mechanism.noise_multiplier, expected_cohort_size)
        self._under_way: _Round | None = None
        self._aborted = 0
        # The round that this process finished last, if an evaluation may follow it; and the messages of that evaluation.
        self._finished: int | None = None
        self._measuring: RoundMessages | None = None
        self.arrays: ArrayRecord | None = None
        # A release that is committed and that the model does not include yet, with the model before it.
        self._unlearned: tuple[torch.Tensor, ArrayRecord] | None = None
        dim = layout.dim + self._norms.further
        settings = {
            "engine": "flower",
            "arrays": layout.digest(),
            "expected_cohort_size": expected_cohort_size,
            "identity": identity,
            "noise_at": options.noise_at,
            "on_failure": options.on_failure,
            **({} if options.report_goal is None else {"report_goal": options.report_goal}),
            "keep_releases": False,
            **self._norms.record(),
        }
        self.state = ServerState(options.promise(mechanism, settings), layout, options, dim)
        self.state.clip_norm = clipping.initial_clip_norm if isinstance(clipping, AdaptiveClipping) else clipping
        self._holders: GridHolders | None = None
        if (secagg := options.secagg) and (encryption := options.encryption):
            # Only a run that encrypts needs gmpy2.
            from hubbub.flower import secagg_server

            packing = secagg.packing(mechanism, options.num_sampled_clients or 0)
            agreement = secagg_server.kept_agreement(
                options.folder,
                lambda run: encryption.agreement(secagg.parsed.public_key, packing, dim, run),
                rounds=len(self.state.path.ledger.rounds),
            )
            self._holders = secagg_server.GridHolders(
                lambda: self._grid, agreement, secagg.parsed, self.state.promise, secagg.timeout
            )

    @property
    def round_index(self) -> int:
        """The next round, from 0."""
        return self.state.path.next_round

    def resume(self, initial: ArrayRecord, grid: Grid) -> None:
        """Restore model and clip norm from the folder, and update the model with releases that it does not include yet."""
        # Everything is read first, so that a folder that is refused stays as it is; start() aborts a round under way.
        model = self.state.restore(self._strategy)
        done, clip_norm, folder = len(self.state.path.ledger.rounds), self.state.clip_norm, self._options.folder
        if model is None and not self._finite(initial):
            raise ConfigError("initial_arrays: has numbers that are not finite; give the model its initial values")
        if model is None and done:
            raise RunFolderError(
                f"{folder}: its ledger has {done} rounds, and state/server.safetensors, the model after them, is missing; "
                "restore the folder from a copy"
            )
        if model is not None and not self._norms.further and clip_norm != self._clipping:
            raise RunFolderError(
                f"{folder}/state/server.safetensors: is of a run with clip norm {clip_norm}, this one has {self._clipping}; "
                "restore the folder from a copy"
            )
        for _ in self.state.path.released(self.state.rounds, self.round_index):
            pass
        self.state.path.start()
        self.abort_what_was_left()
        self.state.evaluations()
        if model is None:
            self.state.save(initial, self._strategy)
            return
        self.arrays = model
        late = list(self.state.path.released(self.state.rounds, self.round_index))
        for release in late:
            # Some strategies keep the model that they sent, and need it to aggregate.
            configured(self._strategy, self.round_index, self.layout.floating(self.arrays), ConfigRecord(), grid)
            self.arrays = self._learn(release, self.arrays)
        if late:
            self.state.save(self.arrays, self._strategy)
        _LOG.info("Resuming after %s rounds of the run in %s", self.round_index, self._options.folder)

    def abort_what_was_left(self) -> None:
        """Abort a round under way; replies to it no longer count."""
        self._under_way = None
        if pending := self.state.path.ledger.pending():
            self.state.path.abort(pending)

    def summing(self) -> "Summing | EncryptedSumming":
        """How the replies of the next round are summed."""
        split, bits = self._norms.split, self.state.promise.lattice_bits
        separation: dict[str, str | int] = {}
        pattern = self._mechanism.participation
        if self._options.pattern_kept_by == "devices" and isinstance(pattern, MinSeparation):
            separation = separation_config(self.state.path.ledger.run, self.round_index, pattern)
        plain = Summing(self.layout, self.state.clip_norm, split, self._mechanism, bits, separation)
        return self._holders.summing(plain, self.round_index) if self._holders else plain

    def begin(
        self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: Mapping[int, bytes], wait: float | None
    ) -> list[Message]:
        """Sample the cohort, record the cost of the round, and make its messages."""
        summing, floating = self.summing(), self.layout.floating(arrays)
        # The run's own count of rounds, which continues after a restart.
        settings = ConfigRecord({**config, **summing.config()})
        configuration = configured(self._strategy, self.round_index + 1, floating, settings, grid)
        if configuration is None:
            raise ConfigError("strategy: asks no client in this round; wrap one that trains in every round")
        given, kind = configuration
        told = first_config(given)
        # What clients noise or encrypt the server cannot clip again.
        alone = self._holders is not None or self._options.noise_at == "clients"
        if alone and any(told.get(name) != value for name, value in summing.config().items()):
            raise ConfigError(
                f"strategy: {type(self._strategy).__name__} does not pass on the config that its configure_train is given, so "
                "that clients would clip or add noise otherwise than is promised; let it be the first ConfigRecord"
            )
        content = RecordDict({name: arrays if record is floating else record for name, record in given.items()})
        if self._holders:
            # Before the first round of a start costs anything.
            self._grid = grid
            self._holders.reach()
        path, size = self.state.path, self._options.num_sampled_clients or self.expected_cohort_size
        clients = clients_of(nodes, self._identity, keys_enforced=self._options.keys_enforced)
        contributions = self._holders.agreement.min_contributions if self._holders else 0
        if len(clients) < (needed := max(self._options.min_survivors or 0, contributions)):
            raise ParticipationError(
                f"round {path.next_round + 1}: {len(clients)} clients are connected, and no sum of fewer than {needed} is "
                "released (min_survivors, min_contributions); nothing was spent; start again when more are there, or set "
                "min_available_nodes of the wrapped strategy"
            )
        sampled = cohort(self._mechanism.participation, path.next_round, clients, size, path)
        if len(sampled) < (goal := self._options.report_goal or 0):
            raise ParticipationError(
                f"round {path.next_round + 1}: {len(sampled)} clients may join, and a round with fewer answers than "
                f"report_goal = {goal} is discarded; nothing was spent; start again when more are there, or lower report_goal"
            )
        lattice = summing.lattice
        # The ledger begins a round before its sum exists.
        nothing = NoSum(lattice, SumNotOpenedError(f"the round was only begun ({secrets.token_hex(32)})"))
        ticket = path.begin(list(sampled), nothing, lattice.clip_norm)
        # From here on the clients count as having taken part.
        messages = addressed(content, kind, sampled, wait)
        self._under_way = _Round(ticket, messages, summing, arrays)
        return messages.messages

    def finish(self, replies: Iterable[Message]) -> ArrayRecord | None:
        """Sum the replies, release the sum with noise, and update the model; ``None`` if the round is discarded."""
        under_way, state = self._under_way, self.state
        if under_way is None:
            raise ConfigError("aggregate_train: no round is under way; call configure_train first")
        messages = under_way.messages
        total, came, counted = under_way.summing.of(messages, replies, under_way.arrays)
        messages.log_faults("aggregate_train")
        self._under_way, self._finished = None, under_way.ticket.round_index
        try:
            if why := self._discarded(came, counted, len(messages.messages)):
                raise SumNotOpenedError(why)
            release = total.open(state.path.row(under_way.ticket))
        except SumNotOpenedError as error:
            _LOG.warning(
                "aggregate_train: %s; the round is discarded, its cost stays spent, the model is left as it was", error
            )
            state.path.abort(under_way.ticket)
            state.save(under_way.arrays, self._strategy)
            self._aborted += 1
            if self._aborted < MOST_ABORTED:
                return None
            raise SumNotOpenedError(
                f"{error} ({self._aborted} rounds in a row: their cost stays spent, and the model is as before them; remove "
                "the cause, and start the run again)",
                error.who,
            ) from error
        self._aborted = 0
        if messages.messages and not counted:
            _LOG.warning(
                "aggregate_train: no reply counts (see the lines above and the clients' own logs); the release is noise alone"
            )
        state.path.commit(under_way.ticket, release)
        self._unlearned = release, under_way.arrays
        self.catch_up()
        return self.arrays

    def catch_up(self) -> None:
        """Update the model with a committed release whose update failed, before anything else is asked of it."""
        if self._unlearned:
            self.arrays = self._learn(*self._unlearned)
            self._unlearned = None
            self.state.save(self.arrays, self._strategy)

    def begin_evaluation(self, content: RecordDict, nodes: Mapping[int, bytes], wait: float | None) -> list[Message]:
        """The messages of a private evaluation, if one is due after the round just finished."""
        evaluations, finished, self._finished = self.state.evaluations(), self._finished, None
        if evaluations is None or finished is None or not evaluations.measured.due(finished):
            return []
        clients = clients_of(nodes, self._identity, keys_enforced=self._options.keys_enforced)
        sampled = [str(client) for client in evaluations.cohort(list(clients))]
        if len(sampled) > MOST_CLIENTS:
            raise ConfigError(f"evaluation: asks {len(sampled)} clients, at most {MOST_CLIENTS} can be summed; sample fewer")
        self._measuring = addressed(content, MessageType.EVALUATE, {client: clients[client] for client in sampled}, wait)
        return self._measuring.messages

    def finish_evaluation(self, replies: Iterable[Message]) -> tuple[Estimate, ...]:
        """The estimates of a private evaluation; none if none is under way."""
        messages, self._measuring, evaluations = self._measuring, None, self.state.evaluations()
        if messages is None or evaluations is None:
            return ()
        answers = stated_numbers(messages, replies)
        messages.log_faults("aggregate_evaluate")
        return evaluations.release(messages.clients, answers)

    def _discarded(self, came: int, counted: int, asked: int) -> str:
        """Why the round is discarded, by the published rules alone; empty if it is released."""
        options = self._options
        if options.min_survivors is not None and counted < options.min_survivors:
            return f"{counted} good replies, min_survivors = {options.min_survivors}"
        goal = asked if options.report_goal is None else options.report_goal
        if options.on_failure == "abort" and came < goal:
            wanted = "" if options.report_goal is None else f", report_goal = {goal}"
            return f"{came} of {asked} clients answered{wanted}, on_failure = 'abort'"
        return ""

    def _learn(self, release: torch.Tensor, arrays: ArrayRecord) -> ArrayRecord:
        """The model after a release: the wrapped strategy sees the noised mean as its single reply."""
        state, layout = self.state, self.layout
        mean = release[: layout.dim] / self.expected_cohort_size
        weight = MetricRecord({getattr(self._strategy, "weighted_by_key", "num-examples"): 1})
        name = getattr(self._strategy, "arrayrecord_key", "arrays")
        content = RecordDict({name: layout.moved(arrays, mean), "metrics": weight})
        # Not a reply to a message: after a restart there is none.
        metadata = Metadata(0, "", 0, 0, "", "", time.time(), 1.0, MessageType.TRAIN)
        only: Message = Message(content, metadata=metadata)  # type: ignore[call-overload]
        with quiet_strategy(self._strategy):
            made, _ = self._strategy.aggregate_train(self.round_index, [only])
        if made is None:
            raise ConfigError(f"strategy: {type(self._strategy).__name__} returned no model; wrap one that averages")
        model = layout.completed(made, arrays)
        if not self._finite(model):
            raise ConfigError(
                f"strategy: {type(self._strategy).__name__} returned a model that is not finite after round {self.round_index}"
                "; the model before is kept, and the cost stays spent; start a new run with a smaller learning rate"
            )
        state.clip_norm = self._norms.following(state.clip_norm, release)
        return model

    def _finite(self, arrays: ArrayRecord) -> bool:
        return all(bool(np.isfinite(arrays[name].numpy()).all()) for name in self.layout.names)
