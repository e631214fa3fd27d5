"""Private strategies: a wrapped Flower strategy sees only the noised mean of a round, after its cost was recorded."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Unpack, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from hubbub._util.checks import integer, positive, scale
from hubbub.accounting.statement import PrivacyGuarantee
from hubbub.accounting.wording import crude_delta
from hubbub.errors import BudgetError, ConfigError
from hubbub.flower.arrays import Layout
from hubbub.flower.messages import Identity, connected
from hubbub.flower.options import Options, StrategyArguments, independent_noise, knowing, require_averaging
from hubbub.flower.server_run import PrivateRun
from hubbub.flower.state import promise_on_record, recorded
from hubbub.flower.summing import Streaming
from hubbub.mechanism import Mechanism
from hubbub.training.clipping import AdaptiveClipping, Clipping

_LOG = logging.getLogger("flwr")


class PrivateStrategy(Strategy):
    """The base class of the private strategies; use :class:`.DPFedAvgFixed` and its siblings."""

    def __init__(self, strategy: Strategy, mechanism: Mechanism, clipping: Clipping, options: Options) -> None:
        self.strategy = require_averaging(strategy)
        options.require_fitting(mechanism)
        self.mechanism = mechanism
        self._clipping = clipping if isinstance(clipping, AdaptiveClipping) else scale("clip_norm", clipping)
        self._options = options
        self._run: PrivateRun | None = None
        self._timeout: float | None = None
        known = options.expected_cohort_size or options.num_sampled_clients
        if isinstance(clipping, AdaptiveClipping) and known:
            # Refuses noise on the count that leaves none for the updates, before the first round.
            clipping.split(mechanism.noise_multiplier, known)
        if options.secagg:
            # Refuses sums that would not be exact.
            options.secagg.packing(mechanism, options.num_sampled_clients or 0)
        # Refuses a mechanism that no theorem covers.
        self.guarantee(rounds=1)

    # The guarantee.

    def guarantee(self, delta: float | None = None, *, rounds: int | None = None) -> PrivacyGuarantee:
        """The guarantee of the rounds begun so far, earlier starts included.

        Args:
            delta: Strictly between 0 and 1; by default the strategy's.
            rounds: The guarantee of this number of rounds instead, to plan a run.

        Raises:
            ValueError: A number out of range.
            LedgerError: The folder holds a run of another mechanism.
        """
        if self._run:
            promise = self._run.state.promise
        else:
            promise = promise_on_record(self._options.promise(self.mechanism, {}), self._options.folder)
        return promise.after(self.rounds_charged if rounds is None else rounds, self._options.delta if delta is None else delta)

    def statement(self, delta: float | None = None) -> str:
        """The full privacy statement of the rounds begun so far, to be published."""
        run = self._run
        if run is None or run.state.closed:
            return self.guarantee(delta).statement()
        return self.guarantee(delta).statement(run.state.promise.facts(self.ledger_head))

    @property
    def rounds_charged(self) -> int:
        """The number of rounds begun, including aborted rounds and those of earlier starts."""
        if self._run and not self._run.state.closed:
            return len(self._run.state.path.ledger.rounds)
        return recorded(self._options.folder)[0]

    @property
    def clip_norm(self) -> float:
        """The clip norm of the next round."""
        if self._run:
            return self._run.state.clip_norm
        return self._clipping.initial_clip_norm if isinstance(self._clipping, AdaptiveClipping) else self._clipping

    @property
    def ledger_head(self) -> str:
        """The hash of the ledger's last record; empty before the run is open. A copy kept elsewhere detects a roll-back."""
        return self._run.state.path.ledger.head if self._run else ""

    # Flower's strategy interface.

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds as every Flower strategy does; an interrupted run resumes with its own model.

        It runs fewer rounds if the mechanism or ``stop_epsilon`` allows no more.

        Raises:
            LedgerError: The folder holds another run, or its ledger is damaged or was rolled back.
            RunFolderError: The folder is damaged, or in use by another process.
            ParticipationError: No connected client may join a round; earlier releases stay in the folder.
        """
        integer("num_rounds", num_rounds, at_least=0)
        self._timeout = positive("timeout", timeout)
        arrays = self.resumed(initial_arrays, grid)
        left = self._rounds_left(num_rounds)
        if remark := crude_delta(self._options.delta, len(self._connected(grid))):
            _LOG.warning("%s", remark)
        if left < num_rounds:
            used_up = self.rounds_charged + left == self.mechanism.rounds
            why = f"rounds = {self.mechanism.rounds}" if used_up else f"stop_epsilon = {self._options.stop_epsilon:g}"
            _LOG.warning("%s allows %s of the %s rounds asked for, after %s before", why, left, num_rounds, self.rounds_charged)
        # Replies are read one by one, and a round ends at its deadline.
        grid = cast("Grid", Streaming(grid, self._options.deadline))
        result = super().start(grid, arrays, left, timeout, train_config, evaluate_config, evaluate_fn)
        if not result.arrays:
            result.arrays = arrays
        if self._run:
            self._run.state.bind()
        _LOG.info("Privacy: %s", self.guarantee().sentence())
        return result

    def resumed(self, initial_arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """The model that the run resumes with; the initial one if the run begins."""
        return self._open(initial_arrays, grid).arrays or initial_arrays

    def summary(self) -> None:
        """Log the privacy settings, then the wrapped strategy's summary."""
        options = self._options
        _LOG.info(
            "\t├──> Differential privacy: noise multiplier %g by the %s, clip norm %g, %s in a round; recorded so far: %s",
            self.mechanism.noise_multiplier,
            options.secagg.noise_by if options.secagg else options.noise_at,
            self.clip_norm,
            options.num_sampled_clients or self.mechanism.participation,
            self.guarantee().sentence(),
        )
        if options.secagg:
            _LOG.info("\t├──> %s", options.secagg.summary())
        _LOG.info("\t├──> The wrapped strategy, whose sampling and weights are not used:")
        self.strategy.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Sample the cohort, record the cost of the round, and make its messages.

        Raises:
            BudgetError: The round would exceed ``stop_epsilon``, or the mechanism has no round left; nothing was spent.
            ParticipationError: No connected client may join.
            ConfigError: The wrapped strategy sends different messages to different clients, or none.
            SumNotOpenedError: The holders that open encrypted sums are not connected; nothing was spent.
        """
        run = self._open(arrays, grid)
        run.abort_what_was_left()
        if not self._rounds_left(1):
            raise BudgetError(
                f"round {run.round_index + 1}: would exceed what is promised. So far: {self.guarantee().sentence()} Start a "
                "new run with a budget of its own, whose privacy cost adds to that of this one"
            )
        messages = run.begin(arrays, config, grid, self._connected(grid), self._timeout)
        # With random cohorts their size is as secret as who is in them.
        whom = f"{len(messages)} clients" if self._options.num_sampled_clients else "a random cohort"
        _LOG.info("configure_train: asked %s", whom)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sum the replies, release the sum with noise, and update the model by the wrapped strategy.

        Returns:
            The new model, or ``None`` if the round is discarded; and public metrics of the round.

        Raises:
            ConfigError: No round is under way.
        """
        if self._run is None:
            raise ConfigError("aggregate_train: no round is under way; call configure_train first")
        arrays = self._run.finish(replies)
        spent = self.guarantee()
        # Nothing here depends on what clients sent, except through the release.
        public: dict[str, int | float | list[int] | list[float]] = {
            "round": self.rounds_charged,
            "released": int(arrays is not None),
            "epsilon": float(spent.epsilon),
            "delta": spent.delta,
            "clip-norm": self.clip_norm,
        }
        return arrays, MetricRecord(public)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The evaluation messages: the wrapped strategy's if exact, those of a cohort of its own if private and due."""
        if self._options.evaluation == "off":
            return []
        # The run's own count of rounds, as in training.
        server_round = self.rounds_charged
        if self._options.evaluation == "exact":
            return self.strategy.configure_evaluate(server_round, arrays, config, grid)
        if self._run is None:
            return []
        model = getattr(self.strategy, "arrayrecord_key", "arrays")
        settings = getattr(self.strategy, "configrecord_key", "config")
        content = RecordDict({model: arrays, settings: ConfigRecord({**config, "server-round": server_round})})
        return self._run.begin_evaluation(content, self._connected(grid), self._timeout)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics: exact, or under noise together with their standard errors."""
        if self._options.evaluation == "exact":
            # The first answer of each node; a grid that fails, fails here.
            firsts = {
                reply.metadata.reply_to_message_id or reply.metadata.src_node_id: reply for reply in reversed(list(replies))
            }
            try:
                return self.strategy.aggregate_evaluate(self.rounds_charged, list(firsts.values())[::-1])
            except Exception as error:  # noqa: BLE001 # one client's odd metrics must not end the run
                _LOG.warning("aggregate_evaluate: round %s has no metrics: %s: %s", server_round, type(error).__name__, error)
                return None
        found: dict[str, int | float | list[int] | list[float]] = {}
        for one in self._run.finish_evaluation(replies) if self._run else ():
            name = f"{one.name}-histogram" if one.parts else one.name
            found[name] = list(one.parts) or one.value
            found[f"{name}-standard-error"] = one.standard_error
        return MetricRecord(found) if found else None

    # Steps of the above.

    def _open(self, arrays: ArrayRecord, grid: Grid) -> PrivateRun:
        """The open run; opened by the first call, later compared with the model."""
        layout = Layout.of(arrays)
        if self._run is not None:
            if layout != self._run.layout:
                raise ConfigError("initial_arrays: are another model's than this run has trained; start a new run for it")
            self._run.catch_up()
            return self._run
        # The divisor of sums and how clients are identified: as recorded, as stated, or by the connected nodes.
        before = recorded(self._options.folder)[1].get("settings", {})
        stated = self._options.expected_cohort_size or self._options.num_sampled_clients or before.get("expected_cohort_size")
        # If keys are not enforced, a client may have one or not.
        identity: Identity | None = before.get("identity", None if self._options.keys_enforced else "key")
        if stated is None or identity is None:
            nodes = self._connected(grid)
            identity = identity or ("key" if any(nodes.values()) else "node")
            if stated is None:
                stated = self.mechanism.participation.expected_cohort_size(len(nodes), self.mechanism.rounds)
                _LOG.warning(
                    "Sums are divided by %g for the whole run, for the %s nodes that are connected now; say "
                    "expected_cohort_size where others will come",
                    stated,
                    len(nodes),
                )
        run = PrivateRun(self.strategy, self.mechanism, self._clipping, self._options, layout, float(stated), identity)
        run.resume(arrays, grid)
        self._run = run
        return run

    def _rounds_left(self, wanted: int) -> int:
        """The number of rounds that may still be begun, at most ``wanted``."""
        done, stop = self.rounds_charged, self._options.stop_epsilon
        most = max(min(wanted, self.mechanism.rounds - done), 0)
        if stop is None:
            return most
        # A NaN allows no round.
        return bisect_left(
            range(done + 1, done + most + 1), True, key=lambda rounds: not self.guarantee(rounds=rounds).epsilon <= stop
        )

    def _connected(self, grid: Grid) -> dict[int, bytes]:
        wanted, setting = getattr(self.strategy, "min_available_nodes", 1), "min_available_nodes"
        if self._options.evaluation == "exact" and getattr(self.strategy, "fraction_evaluate", False):
            # Flower would wait for them for ever, after the round was paid for.
            measuring = getattr(self.strategy, "min_evaluate_nodes", 1)
            wanted, setting = max((wanted, setting), (measuring, "min_evaluate_nodes"))
        return connected(grid, wanted, setting)


class DPFedAvgFixed(PrivateStrategy):
    """Federated averaging with a fixed clip norm and independent noise.

    Each client's update, all floating arrays as one vector, is clipped to ``clip_norm``. Gaussian noise of standard deviation
    ``noise_multiplier`` × ``clip_norm`` is added to the sum. The sum is divided by a fixed public number, and ``strategy`` gets
    this noised mean as its only reply. The cost of a round is recorded before its messages leave.

    Args:
        strategy: One of Flower's Message API that averages, such as ``FedAvg(...)`` or ``FedAdam(...)``.
        clip_norm: The largest L2 norm of a client's update, from 1e-12 to 1e12.
        noise_multiplier: Standard deviation of the noise on the sum, over the clip norm.
        num_sampled_clients: Clients asked in a round; fewer if fewer may join, at the same noise. The cost is that of a client
            in every round, without amplification.
        sampling_probability: In place of ``num_sampled_clients``: Poisson sampling of the connected clients, which amplifies.
        noise_at: ``"server"``; or ``"clients"``: each adds a noise share, sized for ``min_survivors``. The server then adds
            none and cannot clip again. The clients need ``mods=[noising_mod, clipping_mod]``.
        min_survivors: With ``noise_at="clients"``: a round with fewer good replies is discarded.
        buffers: Arrays that are not trained (integers, statistics of batch norm): ``"error"`` refuses a model that has any,
            ``"keep"`` leaves them as they are.
        on_failure: ``"zero"``: a client that does not answer counts as an update of zero. ``"abort"``: the round is discarded,
            and its cost stays spent.
        deadline: Seconds after which :meth:`start` closes a round; later replies are dropped. ``None`` waits for all, up to
            ``timeout``.
        report_goal: With ``on_failure="abort"``: how many answers a round needs; by default all. Ask more clients than that
            (``num_sampled_clients``) and divide by a fixed ``expected_cohort_size``.
        keys_enforced: Your word that the SuperLink admits registered keys only (``--enable-supernode-auth``).
        pattern_kept_by: ``"ledger"``: the server records who took part when. ``"devices"``: the server identifies nobody, and
            each device refuses a round that :class:`.MinSeparation` does not allow; the clients need ``separation_mod``, the
            first of their mods.
        stop_epsilon: No round is begun that would take epsilon above it.
        delta: Of the epsilon that is logged, and of ``stop_epsilon``.
        state: The folder of ledger, keys and model; ``None`` keeps them in memory, for one start.
        expected_cohort_size: The number that sums are divided by; by default ``num_sampled_clients``, or the sampling
            probability times the clients connected when the run begins. The guarantee is then for the zero-out relation, since
            that number depends on the clients.
        rounds: The most rounds of the run, over all starts.
        evaluation: ``"off"``; ``"private"`` or a :class:`.PrivateEvaluation`: clients' metrics are summed under noise, which
            the guarantee counts (by default accuracy, every ten rounds, at a twentieth of ρ); or ``"exact"``: metrics without
            noise, which the guarantee names as not covered.
        simulation_seed: Cohorts and noise follow from it: for experiments, not for release.
        head: A :attr:`ledger_head` that you kept elsewhere: a folder that was rolled back behind it is refused.
        head_hook: A :class:`~hubbub.training.HeadHook`, called with the head of each round before its release leaves.
        secagg: A :class:`.Paillier`: clients encrypt, and the server reads no single update. The clients need
            ``mods=[encrypting_mod, clipping_mod]``, the holders of the key ``hold(app)``.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DPFedAvgFixed(FedAvg(), clip_norm=1.0, noise_multiplier=4.0, num_sampled_clients=50)
        >>> 3.34 < strategy.guarantee(rounds=10).epsilon < 3.35
        True

    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models",
    https://arxiv.org/abs/1710.06963.
    """

    @knowing
    def __init__(
        self,
        strategy: Strategy,
        *,
        clip_norm: float,
        noise_multiplier: float,
        num_sampled_clients: int | None = None,
        rounds: int = 10_000,
        **further: Unpack[StrategyArguments],
    ) -> None:
        options = Options(num_sampled_clients=num_sampled_clients, **further)
        super().__init__(strategy, independent_noise(options, noise_multiplier, rounds), clip_norm, options)


class DPFedAvgAdaptive(PrivateStrategy):
    """Federated averaging whose clip norm follows a quantile of the updates' norms.

    One more coordinate of the noised sum counts the clients whose update was not clipped. ``noise_multiplier`` covers updates
    and count together, so a round costs the same as with a fixed clip norm.

    Args:
        strategy: As of :class:`DPFedAvgFixed`, and so all that is not named here.
        noise_multiplier: Of the update and the count together.
        initial_clip_norm: Of the first round.
        target_quantile: The fraction of updates that shall not be clipped.
        clip_norm_learning_rate: Of the geometric step of the clip norm.
        clip_count_stddev: Standard deviation of the noise on the count; by default a twentieth of the cohort, or the noise
            multiplier where that is more.

    Raises:
        ConfigError: Settings that do not go together, or a strategy that does not average.
        ValueError: A number out of range, or noise on the count that leaves none for the updates.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DPFedAvgAdaptive(FedAvg(), noise_multiplier=2.0, num_sampled_clients=50, target_quantile=0.7)
        >>> strategy.clip_norm
        0.1

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1 and Theorem 1,
    https://arxiv.org/abs/1905.03871.
    """

    @knowing
    def __init__(
        self,
        strategy: Strategy,
        *,
        noise_multiplier: float,
        initial_clip_norm: float = 0.1,
        target_quantile: float = 0.5,
        clip_norm_learning_rate: float = 0.2,
        clip_count_stddev: float | None = None,
        num_sampled_clients: int | None = None,
        rounds: int = 10_000,
        **further: Unpack[StrategyArguments],
    ) -> None:
        options = Options(num_sampled_clients=num_sampled_clients, **further)
        clipping = AdaptiveClipping(initial_clip_norm, target_quantile, clip_norm_learning_rate, clip_count_stddev)
        super().__init__(strategy, independent_noise(options, noise_multiplier, rounds), clipping, options)


class MatrixFactorizationDP(PrivateStrategy):
    """Federated averaging with correlated noise, or any other mechanism, and cohorts that keep its participation pattern.

    A client that took part too recently or too often is not asked. It has taken part from the moment its round begins.
    Correlated noise cancels in sums of the noised means, so ``strategy`` should be linear in them (FedAvg, FedAvgM).

    Args:
        strategy: As of :class:`DPFedAvgFixed`, and so all that is not named here.
        mechanism: Strategy, participation and noise multiplier, for the most rounds of the run.
        clip_norm: The largest L2 norm of a client's update; fixed, or the noise of rounds would not cancel.
        num_sampled_clients: Clients asked in a round, for a participation pattern; not for random cohorts.
        sampling_probability: If given, that of the mechanism.
        noise_at: ``"clients"`` goes with independent noise only, :class:`~hubbub.mechanism.strategies.Identity`.

    Raises:
        ConfigError: Settings that do not go together, a pattern that nobody enforces (``keys_enforced``), or a strategy that
            does not average.
        ValueError: A number out of range.

    Example:
        >>> from flwr.serverapp.strategy import FedAvgM
        >>> from hubbub.mechanism.participation import MinSeparation
        >>> from hubbub.mechanism.strategies import toeplitz
        >>> mechanism = Mechanism(toeplitz.square_root(rounds=40, bands=4), MinSeparation(4, 10), noise_multiplier=4.0)
        >>> strategy = MatrixFactorizationDP(
        ...     FedAvgM(), mechanism=mechanism, clip_norm=1.0, num_sampled_clients=50, keys_enforced=True
        ... )
        >>> strategy.rounds_charged
        0

    Source: Kairouz et al. 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling",
    https://arxiv.org/abs/2103.00039; Choquette-Choo et al. 2023, https://arxiv.org/abs/2211.06530.
    """

    @knowing
    def __init__(
        self,
        strategy: Strategy,
        *,
        mechanism: Mechanism,
        clip_norm: float,
        num_sampled_clients: int | None = None,
        **further: Unpack[StrategyArguments],
    ) -> None:
        if not isinstance(mechanism, Mechanism):
            raise TypeError(f"mechanism = {type(mechanism).__name__}: must be a hubbub.mechanism.Mechanism")
        options = Options(num_sampled_clients=num_sampled_clients, **further)
        super().__init__(strategy, replace(mechanism, shares=options.shares()), clip_norm, options)
