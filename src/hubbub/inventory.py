"""What is known of the named data sets and models before they are loaded: so that a run can be planned without them."""

from dataclasses import dataclass

from hubbub.config import Config
from hubbub.errors import ConfigError

__all__ = ["DATA", "PARAMETERS", "Size", "parameters_of", "units_of"]


@dataclass(frozen=True)
class Size:
    """How large a named data set is: those who load it refuse any other file.

    Args:
        examples: To train on.
        shape: Of one input.
        classes: How many there are.
        users: Whose the training examples are; ``None`` where nobody says.
    """

    examples: int
    shape: tuple[int, ...]
    classes: int
    users: int | None = None


DATA = {
    "cifar10": Size(50_000, (3, 32, 32), 10),
    "digits": Size(1437, (1, 8, 8), 10),
    "fashion-mnist": Size(60_000, (1, 28, 28), 10),
    "mnist": Size(60_000, (1, 28, 28), 10),
    "shakespeare": Size(11_954, (80,), 65, users=264),
}
# Of each model that fits a data set.
PARAMETERS = {
    ("char-lstm", "shakespeare"): 211_657,
    ("char-transformer", "shakespeare"): 423_745,
    ("cifar-cnn", "cifar10"): 550_570,
    ("cifar-cnn", "digits"): 304_234,
    ("cifar-cnn", "fashion-mnist"): 435_306,
    ("cifar-cnn", "mnist"): 435_306,
    ("cnn", "cifar10"): 31_340,
    ("cnn", "fashion-mnist"): 21_840,
    ("cnn", "mnist"): 21_840,
    ("mlp", "cifar10"): 197_322,
    ("mlp", "digits"): 4810,
    ("mlp", "fashion-mnist"): 50_890,
    ("mlp", "mnist"): 50_890,
}


def parameters_of(config: Config) -> int | None:
    """How many parameters the model has; ``None`` where only building it would tell."""
    return PARAMETERS.get((config.model.name, config.data.name))


def units_of(config: Config) -> int | None:
    """How many units of privacy there are, clients or examples; ``None`` where only the data know.

    Of data that are code of one's own, as many clients as the settings say.

    Raises:
        ConfigError: More clients than the data set has examples for.
    """
    size, held = DATA.get(config.data.name), config.training.validation
    # As Dataset.without_test takes them away.
    examples = None if size is None else size.examples - (max(1, round(held * size.examples)) if held else 0)
    if config.privacy.unit == "example":
        return examples
    if config.data.partition == "user":
        # Whom the examples that are held out belong to, only the data know.
        return None if size is None or held else size.users
    clients = config.data.clients
    if examples is not None and clients > examples:
        raise ConfigError(
            f"data.clients = {clients}: there are {examples} training examples in {config.data.name!r}; ask for no more "
            'clients, or name data of your own, "pkg.mod:Name"'
        )
    return clients
