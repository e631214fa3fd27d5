"""The sum of a round: the population that forms it, the sum itself, and its opening with noise."""

import hashlib
import hmac
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import nn

from hubbub._util.prf import derive, seed_key
from hubbub.errors import ConfigError, SumNotOpenedError
from hubbub.noise.lattice import Lattice, require_one_shape
from hubbub.training.clipping import CountSplit
from hubbub.training.ranks import Ranks

# The clients of a round, by their ids.
Cohort = Sequence[Hashable]
# From the global model and the round's index, from 0, to the update that a client sends, before clipping, ``(dim,)`` of any
# floating dtype; ``None`` for a client that does not answer.
Adversary = Callable[[nn.Module, int], torch.Tensor | None]
# Measurements of a client, by name; ``None`` for a client that does not answer.
Values = Mapping[str, float] | None
# Sums of 2^26 losses up to this, of either sign, are far from the largest float64.
_LARGEST_LOSS = 1e100


class Sum(Protocol):
    """The sum of a cohort's clipped updates, not yet released.

    Example:
        >>> total = LatticeSum(torch.tensor([3, -1]), Lattice(clip_norm=1.0), statistics={"clipped_fraction": 0.5})
        >>> (total.open(None) / total.lattice.step).tolist(), total.statistics["clipped_fraction"]
        ([3.0, -1.0], 0.5)
    """

    @property
    def lattice(self) -> Lattice | None:
        """The lattice of the sum; ``None`` for a sum in floating point, which is never released with secure noise."""

    @property
    def statistics(self) -> Mapping[str, float]:
        """Numbers computed from updates (``clipped_fraction``, ``train_loss`` …): private, for the operator alone."""

    def digest(self, key: bytes) -> str:
        """An HMAC of the sum under a secret key, for the ledger."""

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """The sum plus a row of noise, ``(dim,)``; ``None`` adds nothing. The only place where noise and sum meet."""


def require_sum(total: object, who: str) -> None:
    """Refuse what is no :class:`Sum`; ``who`` made it.

    Raises:
        TypeError: It is none.
    """
    if isinstance(total, type) or not all(hasattr(total, name) for name in ("lattice", "statistics", "digest", "open")):
        raise TypeError(
            f"{who} = {type(total).__name__}: must be a sum: return hubbub.training.LatticeSum(total, lattice, statistics) of "
            "the whole numbers lattice.encode(update)[0] of each client, or a PlainSum(total, statistics) in a simulation"
        )


class Population(ABC):
    """A place where clients run: in this process, over a network, encrypted. It is responsible for clipping.

    A population of your own is a subclass with ``clients`` and ``collect``; the rest has defaults.

    Example:
        >>> from hubbub.training.clipping import clip
        >>> class Constant(Population):
        ...     clients = range(10)
        ...
        ...     def collect(self, cohort, model, clip_norm, round_index, split=None):
        ...         update = clip(torch.ones(3), clip_norm)[0]
        ...         return PlainSum(update * len(cohort), {})
        >>> bool(Constant().collect([1, 2], nn.Linear(2, 1), 1.0, 0).open(None).norm() <= 2.0)
        True
    """

    @property
    @abstractmethod
    def clients(self) -> Sequence[Hashable]:
        """Every client's id, once, in a fixed order; the same for the whole run if cohorts are random or a rotation."""

    @abstractmethod
    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> Sum:
        """The sum of the cohort's updates, each clipped as one flat vector to ``clip_norm``.

        With a ``split`` each has one more coordinate, its indicator, ``(dim + 1,)``: ``split.count_scale(clip_norm)`` × ½ if
        the update was not clipped, × −½ if it was; the lattice is that of ``split.joint_norm(clip_norm)``.

        Raises:
            SumNotOpenedError: No sum could be opened.
        """

    @property
    def ranks(self) -> Ranks:
        """The processes among which ``collect`` divides a cohort; by default this one alone."""
        return Ranks()

    @property
    def privacy_unit(self) -> str:
        """The unit whose contribution ``collect`` clips, ``"client"`` or ``"example"``."""
        return "client"

    @property
    def takes_split(self) -> bool:
        """Whether ``collect`` honours a ``split``, so that the clip norm can follow a quantile of the updates' norms."""
        return False

    @property
    def noise_in_sums(self) -> bool:
        """Whether its sums contain their noise before anyone can read them; see :class:`.ReleasePath`."""
        return False

    def measure(self, cohort: Cohort, model: nn.Module) -> Sequence[Values]:
        """The measurements of each client of a cohort on its own data, for a private evaluation.

        Raises:
            ConfigError: Nothing can be measured here.
        """
        raise ConfigError(
            f"evaluation: a {type(self).__name__} measures nothing of its clients; give it measure(), or leave it out"
        )

    def prepare(self, model: nn.Module, cohort: int) -> None:
        """Make all choices before the first round, from the expected size of a cohort alone."""
        return

    def draw_under(self, key: bytes) -> None:
        """Draw what is random in an update (shuffles, dropout) under this key, ``(32,)``, from now on.

        Called before the first round of a run with secure noise, with a secret key that all ranks have. Under a known one each
        unit's update would follow from its place in the list: without one unit those after it would send other updates.
        """
        return

    def inject(self, client: Any, adversary: Adversary | None) -> None:
        """Let an adversary choose a client's updates from now on, for audits and attacks; ``None`` lets it train again.

        The client is sampled, and its update clipped, rounded, summed, encrypted or sent, as any other.

        Raises:
            ConfigError: There is no such client, or its update cannot be chosen here.
        """
        raise ConfigError(f"client = {client!r}: the updates of a {type(self).__name__} cannot be chosen; give it inject()")


class LocalPopulation(Population):
    """A population whose clients, or examples, are computed in this process or by ranks, and are numbered from 0."""

    takes_split = True

    def __init__(self, units: Sized, unit: str, ranks: Ranks | None = None, seed: int = 0) -> None:
        self._units, self._unit, self._ranks = units, unit, ranks or Ranks()
        self.draw_under(seed_key(seed))
        self._adversaries: dict[int, Adversary] = {}

    @property
    def clients(self) -> Sequence[int]:
        """Every client's, or example's, number."""
        return range(len(self._units))

    @property
    def ranks(self) -> Ranks:
        """The processes that divide a cohort."""
        return self._ranks

    @property
    def privacy_unit(self) -> str:
        """The unit whose contribution is clipped."""
        return self._unit

    def draw_under(self, key: bytes) -> None:
        """Draw shuffles and dropout under this key from now on."""
        self._key = derive(key, "local training" if self._unit == "client" else "examples")

    def inject(self, client: int, adversary: Adversary | None) -> None:
        """Let an adversary choose a client's update, in place of its computation; the same on every rank."""
        if client not in self.clients:
            raise ConfigError(f"client = {client!r}: there are {self._unit}s 0 to {len(self.clients) - 1}")
        self._adversaries.pop(client, None)
        if adversary is not None:
            self._adversaries[client] = adversary

    def _injected(self, cohort: Sequence[int], model: nn.Module, round_index: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Those of a cohort whose updates an adversary chooses, if it answers, with their updates."""
        for client in filter(self._adversaries.__contains__, cohort):
            if (update := adversarial_update(self._adversaries[client], model, round_index)) is not None:
                yield client, update


def adversarial_update(adversary: Adversary, model: nn.Module, round_index: int) -> torch.Tensor | None:
    """An adversary's update of a round, ``(dim,)``; it may hold numbers that are not finite."""
    with torch.no_grad():
        update = adversary(model, round_index)
    if update is None:
        return None
    dim = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if not isinstance(update, torch.Tensor) or not update.is_floating_point() or update.shape != (dim,):
        found = f"{update.dtype} {tuple(update.shape)}" if isinstance(update, torch.Tensor) else type(update).__name__
        raise ConfigError(f"adversary: made {found} in round {round_index}; make a floating vector of {dim} numbers, or None")
    return update.detach()


@dataclass(frozen=True)
class LatticeSum:
    """A sum of clipped updates in whole steps of a lattice, independent of the order of its terms.

    Args:
        total: ``(dim,)`` int64, in steps; secret.
        lattice: Says how long a step is.
        statistics: Numbers computed from updates; private.
        units: How many units it holds at least, where each is one example; a cohort of fewer is refused.

    Raises:
        ValueError: ``total`` is no vector of int64.

    Example:
        >>> total = LatticeSum(torch.tensor([3, -1]), Lattice(1.0, bits=8), statistics={})
        >>> (total.open(None) / total.lattice.step).tolist()
        [3.0, -1.0]
    """

    total: torch.Tensor
    lattice: Lattice
    statistics: Mapping[str, float]
    # By keyword, so that a class of one's own can add fields.
    units: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.total.dtype != torch.int64 or self.total.ndim != 1:
            raise ValueError(f"total has shape {tuple(self.total.shape)} and {self.total.dtype}: must be one vector of int64")

    def digest(self, key: bytes) -> str:
        """An HMAC of the sum."""
        return _digest(key, self.total)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """The sum plus a row of noise, rounded to the lattice, ``(dim,)`` float64."""
        return self.lattice.release(self.total, row)


@dataclass(frozen=True)
class PlainSum:
    """A sum in floating point: for simulations, and for runs that promise nothing.

    Args:
        total: ``(dim,)`` float64; secret.
        statistics: Numbers computed from updates; private.

    Example:
        >>> total = PlainSum(torch.tensor([1.0, 2.0], dtype=torch.float64), statistics={})
        >>> total.open(torch.tensor([0.5, 0.5], dtype=torch.float64)).tolist()
        [1.5, 2.5]
    """

    total: torch.Tensor
    statistics: Mapping[str, float]

    # The last bits of a sum in floating point reveal its terms.
    lattice: ClassVar[None] = None

    def digest(self, key: bytes) -> str:
        """An HMAC of the sum."""
        return _digest(key, self.total)

    def open(self, row: torch.Tensor | None) -> torch.Tensor:
        """The sum plus a row of noise, ``(dim,)`` float64."""
        if row is None:
            return self.total
        require_one_shape(self.total, row)
        return self.total + row.to(self.total.device)


@dataclass(frozen=True)
class NoSum:
    """The place of a sum that was not formed; its cost is recorded all the same. ``lattice`` is that of the planned sum."""

    lattice: Lattice | None
    fault: SumNotOpenedError

    # No update was counted.
    statistics: ClassVar[Mapping[str, float]] = MappingProxyType({})

    def digest(self, key: bytes) -> str:
        """An HMAC of the fault."""
        return hmac.new(key, str(self.fault).encode(), hashlib.sha256).hexdigest()

    def open(self, row: torch.Tensor | None) -> NoReturn:
        """Refused."""
        raise self.fault


def _digest(key: bytes, total: torch.Tensor) -> str:
    return hmac.new(key, total.cpu().numpy().tobytes(), hashlib.sha256).hexdigest()


def lattice_of(clip_norm: float, split: CountSplit | None = None, bits: int = 24) -> Lattice:
    """The lattice of sums of updates of this clip norm, each with its indicator if there is a split."""
    return Lattice(clip_norm if split is None else split.joint_norm(clip_norm), bits)


def statistics(cohort: int, clipped: int, losses: Sequence[float]) -> dict[str, float]:
    """The statistics of a round for its operator: private. Losses beyond 1e100, or not finite, are left out.

    No losses that clients state make a sum that is too large for float64, which would end the round.
    """
    finite_losses = [loss for loss in losses if abs(loss) <= _LARGEST_LOSS]
    return {
        "clipped_fraction": clipped / cohort if cohort else 0.0,
        # fsum: independent of the order of clients.
        "train_loss": math.fsum(finite_losses) / len(finite_losses) if finite_losses else math.nan,
    }
