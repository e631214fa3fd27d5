"""Shakespeare by speaker: whole people hidden by correlated noise, as private keyboard models are trained.

Each of 264 speakers is a client and the unit of privacy; 29 others are the public test data. An LSTM predicts the next
character. A cohort of 33 is formed of those who have not taken part in the 7 rounds before, so that a client's rounds lie at
least 8 apart; that and how often it takes part is all that the guarantee counts on. All methods have the same cohorts, clip
norm and epsilon at delta 1e-3; only the noise differs. The server's learning rate of each is chosen on a held-out tenth of the
training examples with a seed that is not used again.

    python examples/headlines/shakespeare.py --device cuda      # in full: 200 rounds, the network of 211,657 parameters
    python examples/headlines/shakespeare.py --reduced          # 48 rounds, a network of 16,489 parameters
"""

from _comparison import Comparison
from _runs import Runs, Settings, parsed, parser, show
from torch import nn

from hubbub.models import CharLstm

COHORT, SEPARATION, LENGTH = 33, 8, 80
METHODS = {
    "independent": {"privacy.strategy": "identity"},
    "tree": {"privacy.strategy": "tree"},
    "banded": {"privacy.strategy": "optimal-toeplitz", "privacy.bands": SEPARATION},
    "BLT": {"privacy.strategy": "blt", "privacy.buffers": 3},
}
RATES = {
    "independent": (0.25, 0.5, 1.0, 2.0, 4.0),
    "tree": (0.25, 0.5, 1.0, 2.0, 4.0),
    "banded": (0.5, 1.0, 2.0, 4.0, 8.0),
    "BLT": (0.5, 1.0, 2.0, 4.0, 8.0),
}
COMMON: Settings = {
    "training.batch_size": 10,
    "training.server_optimizer": "fedavgm",
    "training.server_momentum": 0.9,
    "privacy.mode": "dp-ftrl",
    "privacy.noise": "simulation",
    "privacy.delta": 1e-3,
}
WORDS: Settings = {
    "data.name": "shakespeare",
    "data.partition": "user",
    "privacy.clip_norm": 0.5,
    "participation.pattern": "min-separation",
    "participation.min_separation": SEPARATION,
    "training.learning_rate": 1.0,
    "training.cohort_size": COHORT,
}


def small_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of the reduced runs."""
    return CharLstm(shape, classes, hidden=32)


def full() -> Comparison:
    """Ready for a GPU."""
    told = {"training.rounds": 200, "training.evaluate_every": 10, "model.name": "char-lstm"}
    return Comparison({**COMMON, **WORDS, **told}, METHODS, RATES, (2.0, 8.0, 32.0), "training.server_learning_rate")


def reduced() -> Comparison:
    """A fourth of the rounds, a few steps of each client, a small network, one epsilon."""
    told = {"training.rounds": 48, "training.local_steps": 4, "training.evaluate_every": 12}
    base = {**COMMON, **WORDS, **told, "model.name": "shakespeare:small_lstm"}
    return Comparison(base, METHODS, RATES, (32.0,), "training.server_learning_rate")


def quick() -> Comparison:
    """Eight rounds on small images."""
    cohorts = {"data.clients": 40, "training.cohort_size": 10, "participation.min_separation": 4}
    base = {**COMMON, **cohorts, "data.name": "digits", "training.rounds": 8, "training.evaluate_every": 8}
    methods = {**METHODS, "banded": {"privacy.strategy": "optimal-toeplitz", "privacy.bands": 4}}
    return Comparison(base, methods, dict.fromkeys(METHODS, (0.5,)), (2.0, 8.0), "training.server_learning_rate")


def main() -> None:
    made = parser(__doc__.splitlines()[0], "shakespeare.json", "shakespeare.png")
    made.add_argument("--reduced", action="store_true", help="a small network, 48 rounds of a few steps, one epsilon")
    made.add_argument("--epsilons", type=float, nargs="+", help="only these, in this order")
    arguments = parsed(made)
    comparison = quick() if arguments.quick else reduced() if arguments.reduced else full()
    runs = Runs(arguments.results)
    if not arguments.table:
        comparison.finish(runs, arguments)
    show("shakespeare_reduced" if arguments.reduced else "shakespeare", comparison.table(runs, arguments.seeds), arguments)
    comparison.draw(arguments.picture, runs, arguments.seeds, "Shakespeare, the next character", "user")


if __name__ == "__main__":
    main()
