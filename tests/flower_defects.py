"""What a private strategy must do, as checks that any library's can be put to; each names a defect that Flower 1.41 has.

A check returns what it observed, in a few words, and raises :class:`DefectError` with what it observed where that breaks
privacy, or breaks the run. Where a bound is on a random quantity, the false alarm is below 1e-6.
"""

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy
from scipy.optimize import brentq
from scipy.stats import norm

from flower_arms import SEED, Arm, Entries, Federation, Model, averaging, entries, record
from hubbub.flower.local_grid import LocalGrid

# So many that the noise is lost in what is looked at.
HARDLY = 1e-6


class DefectError(AssertionError):
    """What was observed, and must not be."""


def require(holds: bool, observed: str) -> str:
    if not holds:
        raise DefectError(observed)
    return observed


@contextmanager
def no_crash(what: str) -> Iterator[None]:
    try:
        yield
    except DefectError:
        raise
    except Exception as error:
        raise DefectError(f"{what}: the run dies of {type(error).__name__}") from error


def distance(one: Entries, other: Entries) -> float:
    """Of two models, all arrays as one vector."""
    return math.sqrt(sum(float(np.sum((np.float64(one[name]) - np.float64(other[name])) ** 2)) for name in one))


def long_update(model: Entries, index: int) -> Model:
    """Every client's update is a thousand times too long."""
    return {name: values + 1000.0 for name, values in model.items()}


# Adaptive clipping.

# Quantiles of a lognormal distribution with a deviation of 0.5.
NORMS = np.exp(0.5 * norm.ppf((np.arange(100) + 0.5) / 100))


def logs_of_clip_norms(arm: Arm, strategy: Strategy, updates: list[Sequence[float]], rounds: int) -> list[float]:
    """After each of the rounds, in which each client sends its update: answered by hand, in half the time of a federation."""
    grid = Federation(len(updates), lambda model, index: model).grid
    model, trained = record({"w": np.zeros(len(updates[0]))}), [record({"w": np.array(update)}) for update in updates]
    logs = []
    for server_round in range(1, rounds + 1):
        messages = strategy.configure_train(server_round, model, ConfigRecord(), grid)
        contents = [RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}) for arrays in trained]
        replies = [Message(content, reply_to=message) for content, message in zip(contents, messages, strict=True)]
        strategy.aggregate_train(server_round, replies)
        logs.append(math.log(arm.clip_norm(strategy)))
    return logs


def check_adaptive_clip_norm_reaches_the_quantile(arm: Arm) -> str:
    # The clip norm after 60 rounds, over the quantile of the 100 clients' norms.
    found = {}
    for start in (0.1, 10.0):
        strategy = arm.adaptive(averaging(100), noise_multiplier=1.0, clients=100, start=start, quantile=0.5, rate=0.2)
        last = logs_of_clip_norms(arm, strategy, [(length, 0.0) for length in NORMS], 60)[-1]
        found[start] = math.exp(last) / float(np.quantile(NORMS, 0.5))
    # Noise of 0.05 on the fraction moves log C by 0.018: 20 % are ten deviations.
    told = ", ".join(f"from {start:g} to {ratio:.3g}" for start, ratio in found.items())
    return require(all(abs(ratio - 1) <= 0.2 for ratio in found.values()), f"{told} times the quantile in 60 rounds")


def check_noise_is_that_of_the_clip_norm_that_clipped(arm: Arm) -> str:
    dim, clients = 20_000, 100
    strategy = arm.adaptive(averaging(clients), noise_multiplier=1.0, clients=clients, start=1.0, rate=1.0)
    released, _ = Federation(clients, long_update).round(strategy, {"w": np.zeros(dim)})
    # Andrew et al. 2021, Theorem 1, with 5 on the count: 1/sqrt(1 - 1/10²). Measured within 0.5 %.
    ratio = float(released["w"].std()) * clients / (1 - 0.01) ** -0.5
    return require(abs(ratio - 1) < 0.03, f"{ratio:.3f} of the noise that the clip norm of the round needs")


def check_no_exact_fraction_is_told(arm: Arm) -> str:
    clients, clipped = 100, 37
    strategy = arm.counting(averaging(clients), noise_multiplier=1.0, clients=clients)
    told = {index: arm.said(clipped=index < clipped) for index in range(clients)}
    federation = Federation(clients, lambda model, index: {"w": model["w"] + 1e-3}, lambda index: told[index])
    with logged() as lines:
        _, metrics = federation.round(strategy, {"w": np.zeros(3)})
    exact = {clipped, clients - clipped, clipped / clients, 1 - clipped / clients}
    leaked = [f"{name} = {value:.6g}" for name, value in metrics.items() if any(abs(value - number) < 1e-9 for number in exact)]
    leaked += [line for line in lines if any(f"{number:g}" in line.split() for number in exact)]
    return require(not leaked, f"37 of 100 clipped: told is {', '.join(leaked) or 'nothing'}")


def check_update_and_count_cost_what_is_stated(arm: Arm) -> str:
    """The effective multiplier of update and indicator together, for one client that is there or is not."""
    clients, rate = 20, 1e-3

    def federation(clipped: int, silent: tuple[int, ...] = ()) -> Federation:
        """The first client is clipped, and so many of the others, in directions that cancel."""

        def train(model: Entries, index: int) -> Model:
            length = 1000 if index == 0 else 1000 * (-1) ** index if index <= clipped else 0
            return {"w": model["w"] + length + 1e-9}

        return Federation(clients, train, silent=silent)

    def made() -> Strategy:
        return arm.adaptive(averaging(clients), noise_multiplier=1.0, clients=clients, seed=SEED, start=1.0, rate=rate)

    half = [(1000.0 * (-1) ** index, 0.0) if index < 10 else (1e-9, 0.0) for index in range(clients)]
    logs = np.array([0.0, *logs_of_clip_norms(arm, made(), half, 100)]) / rate
    # The count's deviation, within 7 %, which moves ours by 2 % and Flower's by 4 %.
    deviation, multipliers = float(np.diff(logs).std()), []
    for clipped in (0, 10):
        outcomes = []
        for silent in ((), (0,)):
            released, _ = federation(clipped, silent).round(strategy := made(), {"w": np.zeros(20_000)})
            outcomes.append((released, math.log(arm.clip_norm(strategy)) / rate))
        (there, more), (gone, less) = outcomes
        multipliers.append(1 / math.hypot(distance(there, gone) / float(gone["w"].std()), (more - less) / deviation))
    return require(min(multipliers) > 0.88, f"effective noise multiplier {min(multipliers):.2f} where 1 is stated")


def check_adaptive_takes_small_cohorts_and_any_iterable(arm: Arm) -> str:
    with no_crash("noise multiplier 1, 10 clients"):
        strategy = arm.adaptive(averaging(10), noise_multiplier=1.0, clients=10)
    federation = Federation(10, long_update)
    with no_crash("replies from a generator"):
        replies = federation.ask(strategy, {"w": np.zeros(3)})
        arrays, _ = strategy.aggregate_train(1, (reply for reply in replies))
    return require(arrays is not None, "made for 10 clients, and fed by a generator")


# What is clipped.


def moved_by_one(arm: Arm, model: Model, training: Callable[[Entries], Model], clip_norm: float, clients: int = 10) -> float:
    """How far one client moves the released model, in units of clip norm over clients; hardly any noise."""

    def train(values: Entries, index: int) -> Model:
        return training(values) if index == 0 else {name: value + np.float32(1e-9) for name, value in values.items()}

    strategy = arm.fixed(averaging(clients), clip_norm=clip_norm, noise_multiplier=HARDLY, clients=clients)
    released, _ = Federation(clients, train).round(strategy, model)
    return distance(released, entries(record(model))) * clients / clip_norm


def check_scalars_are_clipped(arm: Arm) -> str:
    model: Model = {"w": np.zeros(3), "logit_scale": np.array(2.659)}
    moved = moved_by_one(arm, model, lambda values: {**values, "logit_scale": values["logit_scale"] + 97.3}, 0.1)
    return require(moved <= 1.001, f"one client moves the model by {moved:.4g} times the bound")


def check_not_finite_counts_as_zero(arm: Arm) -> str:
    found = {}
    for bad in (math.nan, math.inf):
        with no_crash(f"one client of 10 sends {bad}"), np.errstate(all="ignore"):
            found[bad] = moved_by_one(arm, {"w": np.zeros(3)}, lambda values, bad=bad: {"w": values["w"] + bad}, 1.0)
    finite = all(math.isfinite(moved) for moved in found.values())
    return require(finite, f"one client of 10 sends NaN: the model is {'finite' if finite else 'NaN'}")


def check_an_update_of_zero_is_an_update(arm: Arm) -> str:
    with no_crash("an update of zero"):
        moved = moved_by_one(arm, {"w": np.zeros(3)}, lambda values: values, 1.0)
    return require(moved < 1e-3, "counts as zero")


def check_reordered_arrays_are_matched_by_name(arm: Arm) -> str:
    def train(model: Entries, index: int) -> Model:
        return {"b": model["b"] + 0.01, "a": model["a"] + 0.01}

    strategy = arm.fixed(averaging(4), clip_norm=1.0, noise_multiplier=HARDLY, clients=4)
    released, _ = Federation(4, train).round(strategy, {"a": np.full(2, 10.0), "b": np.full(2, -10.0)})
    a, b = float(released["a"][0]), float(released["b"][0])
    return require(abs(a - 10.01) < 1e-3 and abs(b + 9.99) < 1e-3, f"(10, -10) + 0.01 = ({a:.4g}, {b:.4g})")


def check_a_client_that_does_not_clip_is_bounded(arm: Arm) -> str:
    strategy = arm.trusting(averaging(10), clip_norm=1.0, noise_multiplier=HARDLY, clients=10)
    honest = np.zeros(3)
    federation = Federation(10, lambda model, index: {"w": model["w"] + (1000.0 if index == 0 else 0.0)})
    released, _ = federation.round(strategy, {"w": honest})
    moved = float(np.linalg.norm(released["w"])) * 10
    return require(moved <= 1.001, f"a client without the mod moves the model by {moved:.4g} times the bound")


# Buffers.


def check_counters_are_kept_out(arm: Arm) -> str:
    """Twenty steps counted by batch norm must not drown the update, be noised, or become fractions."""
    model: Model = {"w": np.zeros(4), "num_batches_tracked": np.array(100), "running_var": np.full(4, 0.01)}

    def train(values: Entries, index: int) -> Model:
        return {**values, "w": values["w"] + 0.2, "num_batches_tracked": values["num_batches_tracked"] + 20}

    strategy = arm.fixed(averaging(10), clip_norm=1.0, noise_multiplier=0.01, clients=10, buffers="keep")
    with no_crash("a counter of whole numbers"):
        released, _ = Federation(10, train).round(strategy, model)
    kept, counter = float(released["w"].mean()) / 0.2, released["num_batches_tracked"]
    observed = f"{kept:.0%} of the update are left, the counter is {counter.dtype} {float(counter):.9g}"
    return require(abs(kept - 1) < 0.05 and counter.dtype == np.int64, observed)


def check_whole_numbers_do_not_end_the_run(arm: Arm) -> str:
    model: Model = {"w": np.zeros(4), "steps": np.arange(3)}
    strategy = arm.fixed(averaging(4), clip_norm=1.0, noise_multiplier=0.01, clients=4, buffers="keep")
    with no_crash("an array of whole numbers"):
        released, _ = Federation(4, lambda values, index: {**values, "w": values["w"] + 9}).round(strategy, model)
    return require(bool((released["steps"] == np.arange(3)).all()), f"[0, 1, 2] became {released['steps'].tolist()}")


# Noise.


def check_noise_does_not_shrink_with_failures(arm: Arm) -> str:
    """The standard deviation within 1 %, and a client's influence within the clip norm, with 0, 50 and 90 % silent."""
    # Measured within 0.16 %: 1 % are six deviations.
    dim, clients, found = 200_000, 10, []
    for silent in (0, 5, 9):

        def train(model: Entries, index: int) -> Model:
            return {"w": model["w"] + (1000.0 if index == 9 else 1e-9)}

        strategy = arm.fixed(averaging(clients), clip_norm=1.0, noise_multiplier=1.3, clients=clients)
        released, _ = Federation(clients, train, silent=range(silent)).round(strategy, {"w": np.zeros(dim)})
        strong = arm.fixed(averaging(clients), clip_norm=1.0, noise_multiplier=HARDLY, clients=clients)
        alone, _ = Federation(clients, train, silent=range(silent)).round(strong, {"w": np.zeros(3)})
        influence = max(float(np.linalg.norm(alone["w"])), 1 / clients)
        found.append(float(released["w"].std()) / influence)
    told = ", ".join(f"{multiplier:.3f}" for multiplier in found)
    observed = f"noise over one client's influence at 0, 50 and 90 % silent: {told} (1.3 is stated)"
    return require(all(abs(multiplier / 1.3 - 1) < 0.01 for multiplier in found), observed)


def check_weights_change_nothing(arm: Arm) -> str:
    """Bit for bit, with the same noise."""
    changed = []

    def release(weight: float) -> Entries:
        strategy = arm.fixed(averaging(5), clip_norm=1.0, noise_multiplier=1.0, clients=5, seed=SEED)
        said = lambda index: {"num-examples": weight} if index == 0 else {}  # noqa: E731
        federation = Federation(5, lambda model, index: {"w": model["w"] + 10 * np.eye(5)[index]}, said)
        with np.errstate(all="ignore"):
            return federation.round(strategy, {"w": np.zeros(5)})[0]

    equal = release(1)
    for weight in (10**12, -8, 0, math.nan):
        with no_crash(f"num-examples {weight}"):
            if not np.array_equal(release(weight)["w"], equal["w"]):
                changed.append(f"{weight:g}")
    return require(not changed, f"num-examples of one client of 5 that change the model: {', '.join(changed) or 'none'}")


class Watched:
    """A strategy's eyes: what it is given to average, as a mean."""

    seen: Entries

    def aggregate_train(self, server_round: int, replies: object) -> object:
        replies = list(replies)
        models = [entries(next(iter(reply.content.array_records.values()))) for reply in replies]
        self.seen = {name: np.mean([np.float64(model[name]) for model in models], axis=0) for name in models[0]}
        return super().aggregate_train(server_round, replies)


def check_noise_comes_before_the_optimizer(arm: Arm) -> str:
    """A server optimizer sees the noised mean, of which one client moves the clip norm over the clients at most."""
    dim, clients, told, good = 10_000, 10, [], True
    for kind in (FedAdam, FedAvgM):
        views, released = [], []
        for share in (1.0, 0.0):

            def train(model: Entries, index: int, share: float = share) -> Model:
                return {"w": model["w"] + (1000.0 * share + 1e-9 if index == 0 else 1e-9)}

            watched = type(kind.__name__, (Watched, kind), {})
            inner = watched(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
            strategy = arm.fixed(inner, clip_norm=1.0, noise_multiplier=1.0, clients=clients, seed=SEED)
            released.append(Federation(clients, train).round(strategy, {"w": np.zeros(dim)})[0])
            views.append(inner.seen)
        noise = float(views[1]["w"].std()) * clients
        moved, through = (distance(*pair) * clients for pair in (views, released))
        good &= abs(noise - 1) < 0.05 and moved <= 1.001
        told.append(f"{kind.__name__} sees noise {noise:.2f}, one client moves the model by {through:.1f}")
    return require(good, f"{'; '.join(told)} (1 is stated)")


def check_seeds_tell_nothing(arm: Arm) -> str:
    """An app that seeds the global generators knows neither the noise nor the cohort."""

    def outcome() -> tuple[Entries, frozenset[int]]:
        asking = FedAvg(fraction_train=0.05, fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=100)
        strategy = arm.fixed(asking, clip_norm=1.0, noise_multiplier=1.0, clients=5)
        federation = Federation(100, long_update)
        random.seed(42)
        replies = federation.ask(strategy, {"w": np.zeros(5)})
        np.random.seed(42)  # noqa: NPY002 # what an app does
        arrays, _ = strategy.aggregate_train(1, replies)
        return entries(arrays or ArrayRecord()), frozenset(reply.metadata.src_node_id for reply in replies)

    (noise, cohort), (again, same) = outcome(), outcome()
    # The same 5 of 100 by chance: 1.3e-8.
    equal = {"noise": np.array_equal(noise["w"], again["w"]), "cohort": cohort == same}
    known = [name for name in equal if equal[name]]
    return require(not known, f"known from seeds of the app: {' and '.join(known) or 'nothing'}")


def check_half_precision_is_rounded_after_the_noise(arm: Arm) -> str:
    """Weights of 4 in float16, 2⁻⁸ apart: where each number's mean is 0.4 of that, noise must decide how it is rounded."""
    dim, clients, spacing = 10_000, 10, 2.0**-8
    clip_norm = 1.01 * spacing * math.sqrt(dim)

    def train(model: Entries, index: int) -> Model:
        return {"w": model["w"] + np.float16(spacing if index < 4 else 0), "x": model["x"] + np.float16(0.01)}

    z = 0.0005 * clients / clip_norm
    strategy = arm.fixed(averaging(clients), clip_norm=clip_norm, noise_multiplier=z, clients=clients)
    # The further number changes everywhere, since an update of zero is another matter.
    released, _ = Federation(clients, train).round(strategy, {"w": np.full(dim, 4, np.float16), "x": np.zeros(1, np.float16)})
    _, counts = np.unique(released["w"], return_counts=True)
    share, expected = 1 - counts.max() / dim, float(norm.sf((0.5 - 0.4) * spacing / 0.0005))
    # A share of 0.22 of 10,000 has a deviation of 0.004.
    return require(abs(share - expected) < 0.025, f"noise decides {share:.1%} of a float16 model ({expected:.1%} by law)")


def check_clients_noise_is_added_once(arm: Arm) -> str:
    dim, clients = 20_000, 8
    ratio = float(arm.shared_noise(dim, clients, 2.0, 1.5).std()) / 3.0
    # Measured within 0.5 %.
    return require(abs(ratio - 1) < 0.03, f"{ratio:.3f} times the noise that is stated")


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved for epsilon."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))) - delta

    return float(brentq(excess, 0.0, mu**2 / 2 + 40 * mu))


def check_local_epsilon_is_true(arm: Arm) -> str:
    told, good = [], True
    for epsilon in (10.0, 30.0):
        claimed, noise = arm.local(200_000, 1.0, epsilon, 1e-5)
        exact = gaussian_epsilon(1 / float(noise.std()), 1e-5)
        # The noise is measured within 0.16 %, which moves epsilon by 0.3 %.
        good &= exact <= claimed * 1.02
        told.append(f"{exact:.2f} where {claimed:g} is claimed")
    return require(good, f"exact epsilon of one round: {', '.join(told)}")


# What else leaves.


@contextmanager
def logged() -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            lines.append(entry.getMessage())

    keep, loggers = Keep(), [logging.getLogger(name) for name in ("flwr", "hubbub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(keep)
        logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(keep)
            logger.setLevel(level)


def check_metrics_are_not_released(arm: Arm) -> str:
    strategy = arm.fixed(averaging(4), clip_norm=1.0, noise_multiplier=1.0, clients=4)
    federation = Federation(4, lambda model, index: {"w": model["w"] + 1}, lambda index: {"train_loss": 123.456 * (index == 0)})
    with logged() as lines:
        _, metrics = federation.round(strategy, {"w": np.zeros(3)})
    mean = 123.456 / 4
    leaked = [f"{name} = {value:g}" for name, value in metrics.items() if value in (123.456, mean)]
    leaked += [line for line in lines if "123.456" in line or "30.864" in line]
    return require(not leaked, f"a loss of 123.456 of one client of 4: told is {', '.join(leaked) or 'nothing'}")


def check_the_clipping_mod_lets_evaluation_pass(arm: Arm) -> str:
    app = ClientApp(mods=[arm.clipping_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.9, "num-examples": 1})}), reply_to=message)

    grid = LocalGrid(app, 4)
    asking = FedAvg(min_evaluate_nodes=4, min_available_nodes=4)
    replies = grid.send_and_receive(asking.configure_evaluate(1, record({"w": np.zeros(3)}), ConfigRecord(), grid))
    failed = sum(reply.has_error() for reply in replies)
    return require(failed == 0, f"{failed} of 4 clients fail to evaluate with ClientApp(mods=[{arm.clipping_mod.__name__}])")


@dataclass(frozen=True)
class Question:
    """What is asked of a library, in one line, and the check that answers it."""

    asked: str
    check: Callable[[Arm], str]


QUESTIONS = (
    Question("adaptive clipping reaches its quantile", check_adaptive_clip_norm_reaches_the_quantile),
    Question("the noise is that of the clip norm that clipped", check_noise_is_that_of_the_clip_norm_that_clipped),
    Question("the exact share of clipped clients stays secret", check_no_exact_fraction_is_told),
    Question("0-d arrays are clipped", check_scalars_are_clipped),
    Question("counters of batch norm are kept out", check_counters_are_kept_out),
    Question("arrays of whole numbers do not end the run", check_whole_numbers_do_not_end_the_run),
    Question("NaN and infinity count as zero", check_not_finite_counts_as_zero),
    Question("an update of zero is an update", check_an_update_of_zero_is_an_update),
    Question("failures leave the noise as it is", check_noise_does_not_shrink_with_failures),
    Question("weights change nothing", check_weights_change_nothing),
    Question("noise comes before the server optimizer", check_noise_comes_before_the_optimizer),
    Question("arrays are matched by name", check_reordered_arrays_are_matched_by_name),
    Question("an app's seeds tell nothing", check_seeds_tell_nothing),
    Question("half precision is rounded after the noise", check_half_precision_is_rounded_after_the_noise),
    Question("noise of clients is added once", check_clients_noise_is_added_once),
    Question("a client that does not clip is bounded", check_a_client_that_does_not_clip_is_bounded),
    Question("the clipping mod lets evaluation pass", check_the_clipping_mod_lets_evaluation_pass),
    Question("a local epsilon is true", check_local_epsilon_is_true),
    Question("clients' metrics are not released", check_metrics_are_not_released),
    Question(
        "adaptive clipping takes small cohorts, and replies from a generator",
        check_adaptive_takes_small_cohorts_and_any_iterable,
    ),
    Question("update and count together cost what is stated", check_update_and_count_cost_what_is_stated),
)
