"""Norms of per-example gradients without the gradients, and the sum of clipped ones: for simulations.

The gradient of a layer's weight is δᵀa, summed over positions. Its squared norm is Σ (a aᵀ)∘(δ δᵀ) over pairs of positions,
which are few in a linear layer; with the norms at hand, the clipped gradients of all examples together are one product of the
δ, scaled, with the a. No second pass is needed, and no example's own gradient is ever there. So none can be rounded to a
lattice: what a release needs is :mod:`.gradients`.

Letters: a what a layer saw, δ the gradient of the loss by what it made.

Source: Goodfellow 2015, https://arxiv.org/abs/1510.01799; Li et al. 2022, "Large Language Models Can Be Strong Differentially
Private Learners", https://arxiv.org/abs/2110.05679 (sequences); Bu et al. 2023, "Differentially Private Optimization on Large
Model at Small Cost", https://arxiv.org/abs/2210.00038 (one pass; the cheaper way for each layer).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from hubbub.training.gradients import Seen
from hubbub.training.layer_uses import Use, bias_gradients, summed_weight_gradient, unfolded, weight_gradients

__all__ = ["squared_norms", "weighted_sum"]


def squared_norms(seen: Seen) -> torch.Tensor:
    """The squared norm of each example's gradient, ``(examples,)`` float64."""
    total = torch.zeros(len(seen.losses), dtype=torch.float64, device=seen.losses.device)
    weights: dict[str, list[Use]] = defaultdict(list)
    biases: dict[str, torch.Tensor] = {}
    for use in seen.uses:
        weights[use.layer.weight].append(use)
        if use.layer.bias is not None:
            part = bias_gradients(use)
            biases[use.layer.bias] = biases[use.layer.bias] + part if use.layer.bias in biases else part
    others = {name: part for name, part in seen.others.items() if name not in weights and name not in biases}
    for name, found in weights.items():
        total += _of_weight(found, seen.others.get(name))
    for name, bias in biases.items():
        total += _of_rows(bias + seen.others[name] if name in seen.others else bias)
    for part in others.values():
        total += _of_rows(part)
    return total


def weighted_sum(seen: Seen, weights: torch.Tensor, shapes: dict[str, torch.Size]) -> torch.Tensor:
    """The sum of the gradients, each times its weight, ``(dim,)`` float64; of weight 0 it counts as zero, whatever it is.

    Args:
        seen: Of a batch.
        weights: ``(examples,)``.
        shapes: Of all parameters, by name, in the order of the flat vector.
    """
    if not bool((weights != 0).all()):
        # Zero times what is not a number is none.
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
    """The squared norms of all that a weight got, in all its uses together."""
    geometry = found[0].layer.convolution
    alike = all(use.layer.convolution == geometry for use in found)
    grouped = geometry is not None and geometry.groups > 1
    if other is None and alike and not grouped:
        positions = sum(use.deltas.shape[1] if geometry is None else use.deltas[0, 0].numel() for use in found)
        size = found[0].deltas.shape[-1] * found[0].inputs.shape[-1] if geometry is None else _numbers(geometry.kernel)
        if 2 * positions**2 <= size or positions == 1:
            return _of_pairs(found)
    parts = [weight_gradients(use).flatten(1) for use in found] + ([] if other is None else [other.flatten(1)])
    return _of_rows(torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0])


def _of_pairs(found: Sequence[Use]) -> torch.Tensor:
    """By pairs of positions, those of all uses in one row: in float64, since the pairs may cancel."""
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
    """What the kept examples left behind."""
    return Seen(
        seen.losses[kept],
        tuple(replace(use, inputs=use.inputs[kept], deltas=use.deltas[kept]) for use in seen.uses),
        {name: part[kept] for name, part in seen.others.items()},
    )


def _numbers(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()
