"""One private run on a federation: open it, begin a round, sum its replies on the lattice, finish it."""

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hubbub.errors import ConfigError, RunFolderError, SumNotOpenedError
from hubbub.flower.arrays import Layout
from hubbub.flower.messages import Asked, Identity, Node, Template, addressed, clients_of, cohort, stated_numbers, unheard
from hubbub.flower.options import Options
from hubbub.flower.separation import separation_config
from hubbub.flower.state import ServerState
from hubbub.flower.summing import Summing
from hubbub.ledger.ledger import Ticket
from hubbub.ledger.promise import Promise
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import MinSeparation
from hubbub.mechanism.private_evaluation import Estimate
from hubbub.training.aggregate import NoSum
from hubbub.training.clipping import AdaptiveClipping, ClipNorms, Clipping
from hubbub.training.rounds import MOST_ABORTED

if TYPE_CHECKING:
    from hubbub.flower.secagg_server import EncryptedRounds, EncryptedSumming

__all__ = ["Fixed", "PrivateRun"]

_LOG = logging.getLogger("flwr")
# The most clients of a cohort that is drawn at random; sums of that many are exact.
_MOST_CLIENTS = 2**26


class Fixed(NamedTuple):
    """What a run fixes when it begins.

    Args:
        expected_cohort_size: The public number that sums are divided by: never how many clients were asked or answered.
        identity: By what clients are known.
    """

    expected_cohort_size: float
    identity: Identity


@dataclass(frozen=True)
class _Round:
    """A round under way."""

    ticket: Ticket
    asked: Asked
    summing: "Summing | EncryptedSumming"
    arrays: ArrayRecord


class PrivateRun:
    """A run that is open.

    Args:
        strategy: The wrapped one.
        mechanism: How sums are hidden.
        clipping: A clip norm, or the rule by which it moves.
        options: All that was asked for.
        layout: Of the model.
        fixed: What the run fixes when it begins.

    Attributes:
        state: Ledger, noise and clip norm, in memory or in the run's folder.
        arrays: The model after the rounds so far; ``None`` before the first.

    Raises:
        ConfigError: The model has buffers, and nothing says that they stay as they are.
        LedgerError: The folder holds another run.
    """

    def __init__(
        self, strategy: Strategy, mechanism: Mechanism, clipping: Clipping, options: Options, layout: Layout, fixed: Fixed
    ) -> None:
        if layout.buffers and options.buffers == "error":
            raise ConfigError(
                f"initial_arrays: {', '.join(layout.buffers[:3])} {'are no' if len(layout.buffers) > 1 else 'is no'} trainable "
                "parameters, and are neither clipped nor noised; replace the layer (by GroupNorm, say), or say buffers='keep' "
                "and they stay as they are for the whole run"
            )
        self.layout = layout
        self.fixed = fixed
        self._strategy, self._mechanism, self._clipping, self._options = strategy, mechanism, clipping, options
        self._norms = ClipNorms(clipping, mechanism.noise_multiplier, fixed.expected_cohort_size)
        self._under_way: _Round | None = None
        self._aborted = 0
        # The round that was finished last by this process and may be followed by an evaluation; and who was asked in one.
        self._finished: int | None = None
        self._measuring: Asked | None = None
        self.arrays: ArrayRecord | None = None
        dim = layout.dim + self._norms.further
        self.state = ServerState(
            self._promise(),
            layout,
            dim=dim,
            clients=options.num_sampled_clients or _MOST_CLIENTS,
            seed=options.simulation_seed or 0,
            folder=options.folder,
            head=options.head,
            head_hook=options.head_hook,
        )
        self.state.clip_norm = clipping.initial_clip_norm if isinstance(clipping, AdaptiveClipping) else clipping
        self._encrypted: EncryptedRounds | None = None
        if (secagg := options.secagg) and (encryption := options.encryption):
            # Only a run that encrypts needs gmpy2.
            from hubbub.flower import secagg_server

            packing = secagg.packing(mechanism, options.num_sampled_clients or 0)
            self._encrypted = secagg_server.EncryptedRounds(
                secagg, encryption, packing, self.state.promise, dim, options.folder
            )

    @property
    def round_index(self) -> int:
        """Of the next round."""
        return self.state.path.next_round

    def resume(self, initial: ArrayRecord, grid: Grid) -> None:
        """Take up what the folder holds: the model, the clip norm, and a release that nobody has learnt from yet.

        Args:
            initial: The model of a run that begins here.
            grid: That the wrapped strategy may ask what it sent.

        Raises:
            RunFolderError: The model is missing, damaged, or of another run; the folder stays as it is.
        """
        # First all that is read, so that a folder that is refused stays as it is; a round under way is settled by the start.
        held = self.state.restore(self._strategy)
        self._require_model_of_this_run(held)
        self.state.path.start()
        self.state.evaluations(_MOST_CLIENTS)
        if held is None:
            self.state.save(initial, self._strategy)
            return
        self.arrays = held
        late = list(self.state.path.released(self.state.rounds, self.round_index))
        for release in late:
            # Some strategies know what they sent only from having sent it.
            floating = self.layout.floating(self.arrays)
            Template.ask(self._strategy, self.round_index, floating, ConfigRecord(), grid)
            self.arrays = self._learn(release, self.arrays)
        if late:
            self.state.save(self.arrays, self._strategy)
        _LOG.info("Resuming after %s rounds of the run in %s", self.round_index, self._options.folder)

    def _require_model_of_this_run(self, held: ArrayRecord | None) -> None:
        done, clip_norm = len(self.state.path.ledger.rounds), self.state.clip_norm
        if held is None and done:
            raise RunFolderError(
                f"{self._options.folder}: its ledger has {done} rounds, and state/server.safetensors, the model after them, is "
                "missing; restore the folder from a copy"
            )
        if held is not None and not self._norms.further and clip_norm != self._clipping:
            raise RunFolderError(
                f"{self._options.folder}/state/server.safetensors: is of a run with clip norm {clip_norm}, this one has "
                f"{self._clipping}; restore the folder from a copy"
            )

    def abort_what_was_left(self) -> None:
        """A round that was begun and never finished is aborted; whoever answers it comes too late."""
        self._under_way = None
        if pending := self.state.path.ledger.pending():
            self.state.path.abort(pending)

    def reach_holders(self, grid: Grid) -> None:
        """See that the holders of the key, if any, are connected before the first round of a start costs anything."""
        if self._encrypted:
            self._encrypted.reach(grid)

    def summing(self) -> "Summing | EncryptedSumming":
        """How the next round's replies are summed."""
        split, bits = self._norms.split, self.state.promise.lattice_bits
        kept: dict[str, str | int] = {}
        pattern = self._mechanism.participation
        if self._options.pattern_kept_by == "devices" and isinstance(pattern, MinSeparation):
            kept = separation_config(self.state.path.ledger.run, self.round_index, pattern)
        plain = Summing(self.layout, self.state.clip_norm, split, self._mechanism, bits, kept)
        return self._encrypted.summing(plain, self.round_index) if self._encrypted else plain

    def begin(
        self,
        content: RecordDict,
        arrays: ArrayRecord,
        summing: "Summing | EncryptedSumming",
        nodes: Sequence[Node],
        ttl: float | None,
    ) -> list[Message]:
        """Sample the cohort among the connected nodes, record the cost of the round, and make its messages.

        Args:
            content: What every client gets.
            arrays: The model that is sent.
            summing: How the replies will be summed.
            nodes: Those that are connected.
            ttl: Seconds that a message may wait.

        Raises:
            ParticipationError: None of them may join.
        """
        path, size = self.state.path, self._options.num_sampled_clients or self.fixed.expected_cohort_size
        clients = clients_of(nodes, self.fixed.identity, keys_enforced=self._options.keys_enforced)
        chosen = cohort(self._mechanism.participation, path.next_round, clients, size, path)
        lattice = summing.lattice
        # Nobody has sent anything yet: this is what the ledger may know of the sum when a round begins.
        nothing = NoSum(lattice, SumNotOpenedError(f"the round was only begun ({secrets.token_hex(32)})"))
        ticket = path.begin(list(chosen), nothing, lattice.clip_norm)
        # From here on the clients count as having taken part.
        asked = addressed(content, MessageType.TRAIN, chosen, ttl)
        self._under_way = _Round(ticket, asked, summing, arrays)
        return asked.messages

    def finish(self, replies: Iterable[Message]) -> ArrayRecord | None:
        """Sum what came, release it with noise, and let the strategy learn; ``None`` where the round is discarded.

        Raises:
            ConfigError: No round is under way, or the strategy makes no finite model of the mean.
            SumNotOpenedError: Too many rounds in a row could not be opened.
        """
        under_way, state = self._under_way, self.state
        if under_way is None:
            raise ConfigError("aggregate_train: no round is under way; call configure_train first")
        asked = under_way.asked
        total, came, counted = under_way.summing.of(asked, replies, under_way.arrays)
        asked.log_faults("aggregate_train")
        self._under_way, self._finished = None, under_way.ticket.round_index
        if why := self._discarded(came, counted, len(asked.messages)):
            self._discard(under_way, why)
            return None
        try:
            release = total.open(state.path.row(under_way.ticket))
        except SumNotOpenedError as error:
            self._discard(under_way, str(error))
            self._aborted += 1
            if self._aborted < MOST_ABORTED:
                return None
            raise SumNotOpenedError(
                f"{error} (nor could the sums of {self._aborted - 1} rounds before: the cost of all stays spent, and the "
                "model is as before them; remove the cause, and start the run again)",
                error.who,
            ) from error
        self._aborted = 0
        if asked.messages and not counted:
            _LOG.warning(
                "aggregate_train: not one reply counts (see the lines above and the clients' own logs); what is released "
                "is noise alone"
            )
        state.path.commit(under_way.ticket, release)
        self.arrays = self._learn(release, under_way.arrays)
        state.save(self.arrays, self._strategy)
        return self.arrays

    def begin_evaluation(self, content: RecordDict, nodes: Sequence[Node], ttl: float | None) -> list[Message]:
        """The messages of the private evaluation that follows the round that was just finished; none where none follows."""
        evaluations, finished, self._finished = self.state.evaluations(_MOST_CLIENTS), self._finished, None
        if evaluations is None or finished is None or not evaluations.due(finished):
            return []
        clients = clients_of(nodes, self.fixed.identity, keys_enforced=self._options.keys_enforced)
        chosen = [str(client) for client in evaluations.cohort(list(clients))]
        if len(chosen) > _MOST_CLIENTS:
            raise ConfigError(f"evaluation: asks {len(chosen)} clients, at most {_MOST_CLIENTS} can be summed; sample fewer")
        self._measuring = addressed(content, MessageType.EVALUATE, {client: clients[client] for client in chosen}, ttl)
        return self._measuring.messages

    def finish_evaluation(self, replies: Iterable[Message]) -> tuple[Estimate, ...]:
        """What the clients that were asked measured, under noise; empty where nobody was asked."""
        asked, self._measuring, evaluations = self._measuring, None, self.state.evaluations(_MOST_CLIENTS)
        if asked is None or evaluations is None:
            return ()
        answers = stated_numbers(asked, replies)
        asked.log_faults("aggregate_evaluate")
        return evaluations.release(asked.clients, answers)

    def _discard(self, under_way: _Round, why: str) -> None:
        _LOG.warning("aggregate_train: %s; the round is discarded, its cost stays spent, the model is left as it was", why)
        self.state.path.abort(under_way.ticket)
        self.state.save(under_way.arrays, self._strategy)

    def _discarded(self, came: int, counted: int, asked: int) -> str:
        """Why the round is discarded, by the published rules alone; empty where it is released."""
        options = self._options
        if options.min_survivors is not None and counted < options.min_survivors:
            return f"{counted} good replies, min_survivors = {options.min_survivors}"
        goal = asked if options.report_goal is None else min(options.report_goal, asked)
        if options.on_failure == "abort" and came < goal:
            wanted = "" if options.report_goal is None else f", report_goal = {goal}"
            return f"{came} of {asked} clients answered{wanted}, on_failure = 'abort'"
        return ""

    def _learn(self, release: torch.Tensor, arrays: ArrayRecord) -> ArrayRecord:
        """The model after a release: the wrapped strategy sees the noised mean, as the only reply there is."""
        state, layout = self.state, self.layout
        state.clip_norm = self._norms.following(state.clip_norm, release)
        mean = release[: layout.dim] / self.fixed.expected_cohort_size
        weight = MetricRecord({getattr(self._strategy, "weighted_by_key", "num-examples"): 1})
        name = getattr(self._strategy, "arrayrecord_key", "arrays")
        content = RecordDict({name: layout.moved(arrays, mean), "metrics": weight})
        # Made outside of any task, as after a restart there is no message to reply to.
        nobody = Metadata(0, "", 0, 0, "", "", time.time(), 1.0, MessageType.TRAIN)
        only: Message = Message(content, metadata=nobody)  # type: ignore[call-overload]
        with unheard():
            made, _ = self._strategy.aggregate_train(self.round_index, [only])
        if made is None:
            raise ConfigError(f"strategy: {type(self._strategy).__name__} made no model of the mean; wrap one that averages")
        model = layout.completed(made, arrays)
        if not layout.holds_finite(model):
            raise ConfigError(
                f"strategy: the model that {type(self._strategy).__name__} made of round {self.round_index} is not finite; the "
                "rounds so far stay released, their cost stays spent, and the model before is kept; start a new run with a "
                "smaller learning rate"
            )
        return model

    def _promise(self) -> Promise:
        adaptive = isinstance(self._clipping, AdaptiveClipping)
        settings = {
            "engine": "flower",
            "arrays": self.layout.digest(),
            "expected_cohort_size": self.fixed.expected_cohort_size,
            "identity": self.fixed.identity,
            "noise_at": self._options.noise_at,
            "on_failure": self._options.on_failure,
            **({} if self._options.report_goal is None else {"report_goal": self._options.report_goal}),
            "keep_releases": False,
            **({"adaptive_clipping": repr(self._clipping)} if adaptive else {"clip_norm": self._clipping}),
        }
        return self._options.promise(self._mechanism, settings)
