"""A population whose units are single examples: each contributes the negative of its gradient, clipped as one vector.

Simulations may use *ghost norms*: norms of per-example gradients, and the sum of clipped gradients, without the gradients. The
gradient of a layer's weight is δᵀa, summed over positions. Its squared norm is Σ (a aᵀ)∘(δ δᵀ) over pairs of positions, which
are few in a linear layer; with the norms, the sum of clipped gradients is one product of the scaled δ with the a. No example's
own gradient is formed, so that none can be rounded to a lattice: a secure release needs :mod:`.gradients`.

Letters: a the input of a layer, δ the gradient of the loss by its output.

Source: Goodfellow 2015, https://arxiv.org/abs/1510.01799; Li et al. 2022, "Large Language Models Can Be Strong Differentially
Private Learners", https://arxiv.org/abs/2110.05679 (sequences); Bu et al. 2023, "Differentially Private Optimization on Large
Model at Small Cost", https://arxiv.org/abs/2210.00038 (one pass; the cheaper way for each layer).
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import nn

from hubbub._util.checks import scale
from hubbub._util.prf import derive, fresh_key, seed_for, seed_key
from hubbub.errors import ConfigError, DataError
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import (
    Adversary,
    LatticeSum,
    PlainSum,
    Population,
    Values,
    adversarial_update,
    lattice_of,
    statistics,
)
from hubbub.training.clipping import MARGIN, CountSplit, bounded
from hubbub.training.evaluation import measured
from hubbub.training.per_example.gradients import Chosen, ExampleGradients, Seen
from hubbub.training.per_example.layer_uses import Use, bias_gradients, summed_weight_gradient, unfolded, weight_gradients
from hubbub.training.simulation.local import Examples, Loss

__all__ = ["ExamplePopulation", "private_gradients", "squared_norms", "weighted_sum"]


class ExamplePopulation(Population):
    """Examples as two tensors; the server's learning rate is that of SGD, since the mean update is minus the mean gradient.

    Args:
        inputs: ``(examples, …)``. Gradients are computed and summed where they are, on a processor or on a GPU.
        targets: ``(examples, …)``.
        loss: Mean loss of a batch from the module's output and the targets; of single examples here.
        seed: Of random layers (dropout): each example in each round has its own seed, and is then computed alone.
        lattice: Whether clipped gradients are summed as integers, as a release needs; ``False`` sums in floating point, for
            simulations only.
        ghost: Whether to use ghost norms; by default in simulations.
        batch: Examples in memory at once; by default what an eighth of a gigabyte holds, 64 at most.

    An example's contribution depends, to the last bit, on the model, the example and the seed alone, not on the rest of the
    cohort. A module must not keep plain attributes from one call to the next. An example whose gradient fails, such as for a
    target that is no class, counts as zero; the logger ``hubbub`` and the private ``failed`` of a round's statistics report it
    to the operator.

    Raises:
        DataError: Inputs and targets of different lengths, or no example.
        ConfigError: Ghost norms on a lattice.

    Example:
        >>> from hubbub.accounting import calibrate
        >>> from hubbub.mechanism.participation import PoissonSampling
        >>> from hubbub.training import Plan, train
        >>> mechanism = calibrate(rounds=2, participation=PoissonSampling(0.5), epsilon=4.0, delta=1e-5)
        >>> examples = ExamplePopulation(torch.randn(40, 3), torch.zeros(40, dtype=torch.long), nn.functional.cross_entropy)
        >>> [result.round_index for result in train(Plan(mechanism, 1.0, 1e-5), examples, nn.Linear(3, 2))]
        [0, 1]
    """

    def __init__(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss: Loss,
        *,
        lattice: bool = True,
        seed: int = 0,
        ghost: bool | None = None,
        batch: int | None = None,
    ) -> None:
        _require_pairs(inputs, targets)
        if not len(inputs):
            raise DataError("inputs: there are no examples")
        if lattice and ghost:
            raise ConfigError(
                "ghost = True with lattice = True: a secure release rounds each example's own gradient to whole steps, and "
                "ghost norms never make it; leave it out, or take lattice = False in a simulation"
            )
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._lattice, self._ghost, self._batch = lattice, not lattice if ghost is None else ghost, batch
        self._key = derive(seed_key(seed), "examples")
        self._model: nn.Module | None = None
        self._gradients: ExampleGradients
        self._adversaries: dict[int, Adversary] = {}

    @property
    def clients(self) -> Sequence[int]:
        """Every example's number."""
        return range(len(self._inputs))

    def prepare(self, model: nn.Module, _: int) -> None:
        """Refuse, on a probe batch, a model that fails for every example, or depends on earlier ones.

        Raises:
            ConfigError: It does.
        """
        self._of(model)

    takes_split = True

    def inject(self, client: int, adversary: Adversary | None) -> None:
        """Let an adversary choose an example's contribution, in place of minus its gradient.

        Raises:
            ConfigError: There is no such example, or ghost norms are used.
        """
        if client not in self.clients:
            raise ConfigError(f"client = {client!r}: there are examples 0 to {len(self._inputs) - 1}")
        if self._ghost:
            raise ConfigError("ghost = True: makes no example's gradient, so that none can be chosen; say ghost = False")
        self._adversaries.pop(client, None)
        if adversary is not None:
            self._adversaries[client] = adversary

    def collect(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        split: CountSplit | None = None,
    ) -> LatticeSum | PlainSum:
        """The sum of minus the gradients of a cohort, clipped unless ``clip_norm`` is ``None``, ``(dim,)``.

        Args:
            cohort: Numbers of examples.
            model: The global model, which stays as it is.
            clip_norm: Of one gradient.
            round_index: From 0.
            split: With adaptive clipping: one more coordinate, each example's indicator, on the lattice of the joint norm.
        """
        gradients, chosen = self._of(model), [int(str(number)) for number in cohort]
        own = [number for number in chosen if number not in self._adversaries]
        examples = Chosen(self._inputs, self._targets, own, lambda number: seed_for(self._key, number, round_index))
        # Injected contributions, as gradients and losses.
        further = (
            (-update[None].to(self._inputs.device), torch.tensor([math.nan]))
            for number in chosen
            if number in self._adversaries
            and (update := adversarial_update(self._adversaries[number], model, round_index)) is not None
        )
        lattice = lattice_of(clip_norm, split) if self._lattice and clip_norm is not None else None
        if self._ghost and gradients.batched(examples):
            total, private = _ghost_sum(gradients, examples, clip_norm, split)
        else:
            total, private = _row_sum(gradients, examples, clip_norm, lattice, split, further)
        total[: gradients.dim].neg_()
        return LatticeSum(total, lattice, private) if lattice else PlainSum(total, private)

    def measure(self, cohort: Sequence[Hashable], model: nn.Module) -> list[Values]:
        """``accuracy`` and ``loss`` of each example; ``None`` of one that fails."""
        numbers = [int(str(number)) for number in cohort]
        return [measured(model, partial(self._one, n), self._loss, f"example {n}") for n in numbers]

    def _one(self, number: int) -> Examples:
        return self._inputs[number : number + 1], self._targets[number : number + 1]

    def _of(self, model: nn.Module) -> ExampleGradients:
        """Per-example gradients of a copy of the model, so that the model itself stays as it is."""
        if model is not self._model:
            copied = deepcopy(model).to(self._inputs.device).train()
            gradients = ExampleGradients(copied, self._loss, batch=self._batch)
            gradients.require_steady(self._inputs, self._targets)
            self._model, self._gradients = model, gradients
        with torch.no_grad():
            for mine, given in zip(self._gradients.module.parameters(), model.parameters(), strict=True):
                mine.copy_(given)
        return self._gradients


# By module, so that a user's loop does not check its module in each step.
_KNOWN: WeakKeyDictionary[nn.Module, tuple[Loss, ExampleGradients]] = WeakKeyDictionary()


def private_gradients(
    model: nn.Module, loss: Loss, inputs: torch.Tensor, targets: torch.Tensor, clip_norm: float
) -> LatticeSum:
    """The sum of the clipped gradients of single examples, for a user's training loop.

    It is no release: ``ReleasePath`` records the cost of the step, and adds its row of noise.

    Args:
        model: Any module without buffers, in its training or evaluation mode; it stays as it is.
        loss: Mean loss of a batch from the module's output and the targets.
        inputs: Of the step's examples, ``(examples, …)``; possibly zero of them.
        targets: ``(examples, …)``.
        clip_norm: The largest norm of one gradient, all trainable parameters as one vector.

    Returns:
        ``(dim,)``, in the order of ``model.parameters()`` without frozen ones. ``statistics`` (mean loss, clipped fraction) are
        private. Dropout and the like draw from a fresh secret key for each example.

    Raises:
        ConfigError: No trainable parameter, several dtypes, or a buffer.
        DataError: Inputs and targets of different lengths.
        ValueError: The clip norm is out of range.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> total = private_gradients(model, nn.functional.cross_entropy, torch.randn(5, 3), torch.zeros(5).long(), 1.0)
        >>> total.total.shape, bool(total.open(None).norm() <= 5.0)
        (torch.Size([8]), True)
    """
    _require_pairs(inputs, targets)
    known_loss, gradients = _KNOWN.get(model, (None, None))
    if gradients is None or known_loss is not loss or not gradients.fits():
        gradients = ExampleGradients(model, loss)
        gradients.require_steady(inputs, targets)
        _KNOWN[model] = loss, gradients
    key = fresh_key()
    examples = Chosen(inputs, targets, range(len(inputs)), lambda number: seed_for(key, number))
    lattice = Lattice(clip_norm)
    total, private = _row_sum(gradients, examples, clip_norm, lattice)
    return LatticeSum(total, lattice, private)


# Gradients ``(some, dim)`` and losses ``(some,)``.
_Rows = tuple[torch.Tensor, torch.Tensor]
# A sum, with the count of indicators last where there is a split, and the operator's statistics.
_Sum = tuple[torch.Tensor, dict[str, float]]


def _require_pairs(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    if len(inputs) != len(targets):
        raise DataError(f"inputs: there are {len(inputs)}, and {len(targets)} targets")


def _row_sum(
    gradients: ExampleGradients,
    examples: Chosen,
    clip_norm: float | None,
    lattice: Lattice | None,
    split: CountSplit | None = None,
    further: Iterable[_Rows] = (),
) -> _Sum:
    """The sum of explicit gradients, in whole steps if there is a lattice, else in float64."""
    kind, device = torch.int64 if lattice else torch.float64, examples.inputs.device
    total = torch.zeros(gradients.dim + (split is not None), dtype=kind, device=device)
    clipped, losses = [], []
    for rows, found in chain(gradients.rows(examples), further):
        losses.append(found)
        if lattice and split is None:
            clipped.append(lattice.encode_rows(rows, total))
            continue
        for row in rows:
            part, flag = bounded(row, clip_norm, lattice, split)
            total += part
            clipped.append(torch.tensor([flag]))
    return total, _statistics(gradients, clipped, losses)


def _ghost_sum(gradients: ExampleGradients, examples: Chosen, clip_norm: float | None, split: CountSplit | None) -> _Sum:
    """The sum by ghost norms, in float64."""
    total = torch.zeros(gradients.dim, dtype=torch.float64, device=examples.inputs.device)
    clipped, losses, count = [], [], 0.0
    for seen in gradients.batches(examples):
        losses.append(seen.losses)
        flags, weights = torch.zeros(len(seen.losses), dtype=torch.bool), torch.ones_like(seen.losses)
        if clip_norm is not None:
            norms = squared_norms(seen).sqrt()
            bound = scale("clip_norm", clip_norm) * MARGIN
            flags = ~(norms <= bound)
            weights = torch.where(flags, bound / norms, 1.0).nan_to_num(0.0, 0.0, 0.0)
        clipped.append(flags)
        count += len(flags) / 2 - float(flags.sum())
        total += weighted_sum(seen, weights, gradients.shapes)
    if split is not None and clip_norm is not None:
        total = torch.cat([total, total.new_tensor([split.count_scale(clip_norm) * count])])
    return total, _statistics(gradients, clipped, losses)


def _statistics(
    gradients: ExampleGradients, clipped: Sequence[torch.Tensor], losses: Sequence[torch.Tensor]
) -> dict[str, float]:
    """The statistics of a round for its operator, with how many examples failed: private."""
    failed, gradients.failed = gradients.failed, 0
    examples = sum(map(len, clipped))
    found = statistics(examples, sum(int(part.sum()) for part in clipped), [x for part in losses for x in part.tolist()])
    return found | ({"failed": float(failed)} if failed else {})


def squared_norms(seen: Seen) -> torch.Tensor:
    """The squared norm of each example's gradient, ``(examples,)`` float64."""
    total = torch.zeros(len(seen.losses), dtype=torch.float64, device=seen.losses.device)
    weights: dict[str, list[Use]] = defaultdict(list)
    others = dict(seen.others)
    for use in seen.uses:
        weights[use.layer.weight].append(use)
        if (name := use.layer.bias) is not None:
            part = bias_gradients(use)
            others[name] = others[name] + part if name in others else part
    for name, found in weights.items():
        total += _of_weight(found, others.pop(name, None))
    for part in others.values():
        total += _of_rows(part)
    return total


def weighted_sum(seen: Seen, weights: torch.Tensor, shapes: dict[str, torch.Size]) -> torch.Tensor:
    """The sum of the gradients, each times its weight, ``(dim,)`` float64; weight 0 counts as zero even for NaN.

    Args:
        seen: Of a batch.
        weights: ``(examples,)``.
        shapes: Of all parameters, by name, in the order of the flat vector.
    """
    if not bool((weights != 0).all()):
        # 0 times NaN is NaN.
        seen, weights = _only(seen, weights != 0), weights[weights != 0]
    first = seen.losses
    found = {name: first.new_zeros(shape) for name, shape in shapes.items()}
    weights = weights.to(first.dtype)
    for name, part in seen.others.items():
        found[name] += torch.tensordot(weights, part, dims=1)
    for use in seen.uses:
        scaled = replace(use, deltas=use.deltas * weights.view(-1, *[1] * (use.deltas.ndim - 1)))
        found[use.layer.weight] += summed_weight_gradient(scaled).reshape(shapes[use.layer.weight])
        if use.layer.bias is not None:
            found[use.layer.bias] += bias_gradients(scaled).sum(dim=0)
    return torch.cat([part.reshape(-1).to(torch.float64) for part in found.values()])


def _of_weight(found: Sequence[Use], other: torch.Tensor | None) -> torch.Tensor:
    """The squared norms of a weight's gradients, all uses together."""
    geometry = found[0].layer.convolution
    alike = all(use.layer.convolution == geometry for use in found)
    grouped = geometry is not None and geometry.groups > 1
    if other is None and alike and not grouped:
        positions = sum(use.deltas.shape[1] if geometry is None else use.deltas[0, 0].numel() for use in found)
        size = found[0].deltas.shape[-1] * found[0].inputs.shape[-1] if geometry is None else math.prod(geometry.kernel)
        if 2 * positions**2 <= size or positions == 1:
            return _of_pairs(found)
    parts = [weight_gradients(use).flatten(1) for use in found] + ([] if other is None else [other.flatten(1)])
    return _of_rows(torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0])


def _of_pairs(found: Sequence[Use]) -> torch.Tensor:
    """As above by pairs of positions, all uses in one row; in float64, since pairs may cancel."""
    saw = [use.inputs if use.layer.convolution is None else unfolded(use.inputs, use.layer.convolution) for use in found]
    deltas = [use.deltas if use.layer.convolution is None else use.deltas.flatten(2).mT for use in found]
    a, d = torch.cat(saw, dim=1), torch.cat(deltas, dim=1)
    if a.shape[1] == 1:
        return _of_rows(a) * _of_rows(d)
    a, d = a.to(torch.float64), d.to(torch.float64)
    return (torch.bmm(a, a.mT) * torch.bmm(d, d.mT)).sum(dim=(1, 2)).clamp_(min=0)


def _of_rows(part: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=torch.float64)
    return norms.square()


def _only(seen: Seen, kept: torch.Tensor) -> Seen:
    """The part of the kept examples."""
    return Seen(
        seen.losses[kept],
        tuple(replace(use, inputs=use.inputs[kept], deltas=use.deltas[kept]) for use in seen.uses),
        {name: part[kept] for name, part in seen.others.items()},
    )
