"""Means and variances of inputs as a private release of their own, so that normalization by them is paid for.

They are a run of one round. The update of an example is the mean of each channel over its places, and the mean of the square;
that of a client is the mean of its examples' updates. The sum gets noise and is on record as that of any round, and the run is
an earlier run of those that train on normalized inputs: their guarantees count it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hubbub._util.checks import positive
from hubbub._util.prf import derive, seed_key
from hubbub.accounting.runs import RunCharge
from hubbub.errors import ConfigError, DataError, RunFolderError
from hubbub.ledger.actual_cost import Recorded
from hubbub.ledger.multi_run import costs_of_ended_runs
from hubbub.ledger.promise import MOMENTS
from hubbub.mechanism import Mechanism
from hubbub.mechanism.participation import PoissonSampling, SingleParticipation
from hubbub.mechanism.strategies import Identity
from hubbub.training.aggregate import Cohort, LatticeSum, LocalPopulation, lattice_of
from hubbub.training.clipping import CountSplit
from hubbub.training.plan import RunPlan
from hubbub.training.rounds import train
from hubbub.training.run_folder import RunStore
from hubbub.training.run_folder.record import read_run

EVERYONE = PoissonSampling(1.0)
# Examples whose squares are in memory at once.
_SOME = 16
# The clip norm is that of channels whose means and mean squares are all of this size.
_USUAL = 2.0


@dataclass(frozen=True)
class Moments:
    """Released means and variances of channels.

    Args:
        mean: ``(channels,)`` float64.
        variance: ``(channels,)`` float64; at least one standard error of the noise.
        charges: What they cost, for ``prior`` of :func:`hubbub.calibrate` and ``earlier`` of :class:`RunPlan`.

    Example:
        >>> moments = Moments(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 1.0]), ())
        >>> moments.normalized(torch.tensor([[3.0, 2.0]])).tolist()
        [[1.0, 0.0]]
    """

    mean: torch.Tensor
    variance: torch.Tensor
    charges: tuple[RunCharge, ...]

    def normalized(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs ``(examples, channels, …)`` less the mean, over the standard deviation, in their own dtype.

        Raises:
            DataError: Inputs of other channels, or of whole numbers.
        """
        _require_channels(inputs)
        if inputs.shape[1] != len(self.mean):
            raise DataError(f"inputs: have {inputs.shape[1]} channels, these means and variances are of {len(self.mean)}")
        shape = (-1, *[1] * (inputs.ndim - 2))
        mean, scale = (part.to(inputs).reshape(shape) for part in (self.mean, self.variance.sqrt()))
        return (inputs - mean) / scale


def private_moments(
    clients: Sequence[torch.Tensor] | torch.Tensor,
    store: RunStore,
    *,
    noise_multiplier: float = 8.0,
    clip_norm: float | None = None,
    participation: PoissonSampling | SingleParticipation = EVERYONE,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **terms: Any,
) -> Moments:
    """Release means and variances of channels with noise, or read them where they were released before.

    Args:
        clients: The inputs of each client, ``(examples, channels, …)`` each; or the inputs of all examples as one tensor, each
            example a unit.
        store: The folder of this run alone.
        noise_multiplier: Standard deviation of the noise over the clip norm.
        clip_norm: The largest L2 norm of a unit's means and mean squares; by default that of channels all of whose means and
            mean squares are 2.
        participation: Every unit takes part once: as Poisson cohorts of all, for runs with random cohorts, or, for runs with
            a pattern, by ``SingleParticipation()``.
        seed: Of a simulation.
        settings: What is recorded of the inputs, as for :class:`RunPlan`.
        terms: ``delta`` and ``noise``, as for :class:`RunPlan`.

    Raises:
        DataError: No unit, inputs of whole numbers, or clients of other channels.
        ValueError: A number out of range.
        ConfigError: Another participation.
        LedgerError: The folder holds another run.

    Example:
        >>> import tempfile
        >>> inputs = torch.randn(5000, 2, 3) * 3 + 1
        >>> moments = private_moments(inputs, RunStore(Path(tempfile.mkdtemp()) / "moments"), clip_norm=20.0)
        >>> bool((moments.mean - 1).abs().max() < 0.3), bool((moments.variance - 9).abs().max() < 1.5)
        (True, True)

    Source: Tramèr and Boneh 2021, who release means and variances of scattering features so, https://arxiv.org/abs/2011.11660.
    """
    if not len(clients):
        raise DataError("clients: there are none")
    units = _Units(clients)
    if participation not in (EVERYONE, SingleParticipation()):
        raise ConfigError(f"participation = {participation}: everyone takes part once; say PoissonSampling(1.0)")
    plan = RunPlan(
        rounds=1,
        participation=participation,
        expected_cohort_size=len(clients),
        mechanism=Mechanism(Identity(1), participation, noise_multiplier),
        clip_norm=_USUAL * math.sqrt(2 * units.channels) if clip_norm is None else positive("clip_norm", clip_norm),
        privacy_unit=units.privacy_unit,
        # Of a simulation: other noise than that of the run that trains.
        seed=int.from_bytes(derive(seed_key(seed), "moments")[:7]),
        settings={"statistics": MOMENTS, **(settings or {})},
        **terms,
    )
    module = nn.ParameterDict({"moments": nn.Parameter(torch.zeros(2 * units.channels, device="cpu"))})
    for _ in train(plan, units, module, store):
        pass
    return read_moments(store.folder)


def read_moments(folder: Path, require: Callable[[Recorded], None] = lambda _: None) -> Moments:
    """The means and variances that a run released, as its ledger has them; ``require`` may refuse that run.

    Raises:
        RunFolderError: There is no such run.
        LedgerError: It has not ended, or its ledger is damaged.
    """
    recorded = read_run(folder)
    mechanism, terms = recorded.promise.mechanism, recorded.promise.terms
    if recorded.promise.settings.get("statistics") != MOMENTS or not (mechanism and terms.clip_norm and terms.parameters):
        raise RunFolderError(f"{folder}: is no run of means and variances; name the folder of one")
    require(recorded)
    charges = costs_of_ended_runs([recorded])
    released = recorded.history.rounds[0].release
    if released is None:
        raise RunFolderError(
            f"{folder}: its only round was aborted; nothing was released, and its cost stays spent; train these settings in "
            "another folder ('hubbub train'), and name this one in privacy.earlier_runs there, so that its cost is counted"
        )
    units = float(recorded.promise.settings["expected_cohort_size"])
    mean, square = (RunStore(folder).load_release(0, released, terms.parameters) / units).chunk(2)
    error = mechanism.noise_multiplier * terms.clip_norm / units
    return Moments(mean, (square - mean.square()).clamp(min=error), charges)


def _require_channels(inputs: torch.Tensor) -> None:
    if inputs.ndim < 2 or not inputs.is_floating_point():
        raise DataError(f"inputs: are {inputs.dtype} {tuple(inputs.shape)}; means are of real numbers (examples, channels, …)")


class _Units(LocalPopulation):
    """Units whose update is their means and mean squares, ``(2 * channels,)``."""

    takes_split = False

    def __init__(self, clients: Sequence[torch.Tensor] | torch.Tensor) -> None:
        super().__init__(clients, "example" if isinstance(clients, torch.Tensor) else "client")
        first = clients if isinstance(clients, torch.Tensor) else clients[0]
        _require_channels(first)
        self._clients, self.channels, self._device = clients, first.shape[1], first.device
        for number, inputs in enumerate(clients if self.privacy_unit == "client" else ()):
            _require_channels(inputs)
            if inputs.shape[1] != self.channels:
                raise DataError(
                    f"clients[{number}]: has {inputs.shape[1]} channels, clients[0] {self.channels}; give all the same"
                )

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> LatticeSum:
        if clip_norm is None:
            raise ConfigError("clip_norm: means and variances have one")
        lattice, total = lattice_of(clip_norm), torch.zeros(2 * self.channels, dtype=torch.int64, device=self._device)
        for first in range(0, len(cohort), _SOME):
            some = cohort[first : first + _SOME]
            numbers = torch.tensor(some, device="cpu")
            if isinstance(self._clients, torch.Tensor):
                # Always as many: kernels, and so the last bits, depend on shapes.
                padded = torch.cat([numbers, numbers[:1].expand(_SOME - len(some))])
                rows = _moments(self._clients[padded])[: len(some)]
            else:
                # A client without examples moves nothing.
                each = [_moments(self._clients[number]) for number in numbers.tolist()]
                rows = torch.stack([found.sum(0) / max(1, len(found)) for found in each])
            lattice.encode_rows(rows, total)
        return LatticeSum(total, lattice, {})


def _moments(inputs: torch.Tensor) -> torch.Tensor:
    """Means and mean squares over the places of each example, ``(examples, 2 * channels)``."""
    # Squares of half precision would overflow from 256 on, and move nothing.
    inputs = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    places = inputs.flatten(2) if inputs.ndim > 2 else inputs.unsqueeze(2)
    return torch.cat([places.mean(2), places.square().mean(2)], dim=1)
