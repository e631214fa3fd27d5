"""The gradient of each single example, as one flat vector.

``vmap`` batches the computation of one example, so that no layer can mix examples. Linear layers and convolutions are not
differentiated by their weights there: their inputs and the gradients of their outputs (:mod:`.layer_uses`) give each example's
gradient in one product, at less cost. All other parameters are differentiated by ``vmap(grad)``.

A batch always has the same number of examples, the last one padded, so that kernels are the same. A module is first checked
with synthetic examples, permuted and next to others that are NaN: no bit may change. If ``vmap`` does not support the module,
if it draws random numbers, or if bits change, examples are taken one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import grad, vmap

from hubbub.training.per_example.layer_uses import Layer, Taps, Use, bias_gradients, uses, weight_gradients
from hubbub.training.simulation.faults import isolated, note, probe_batch, reason, require_steady, shaken
from hubbub.training.simulation.functional import called, in_range, own_generators, require_trainable
from hubbub.training.simulation.local import Loss

__all__ = ["Chosen", "ExampleGradients", "Seen"]

Tensors = dict[str, torch.Tensor]
# Numbers that a batch may hold: an eighth of a gigabyte in float32.
_ROOM = 2**25
_MOST = 64
# The most examples at once without explicit gradients.
_MOST_SEEN = 1024
_VECTOR = 16


@dataclass(frozen=True)
class Chosen:
    """A selection of examples.

    Args:
        inputs: Of all examples, ``(examples, …)``.
        targets: Likewise.
        numbers: The selected ones.
        seed: From an example's number to the seed of random layers.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    numbers: Sequence[int]
    seed: Callable[[int], int]


@dataclass(frozen=True)
class Seen:
    """Losses of a batch, uses of layers, and the gradients of all other parameters, ``(examples, …)``."""

    losses: torch.Tensor
    uses: tuple[Use, ...]
    others: Tensors


@dataclass(frozen=True)
class _Look:
    """The structure of a module: tapped layers, their output shapes, other trainable parameters, and numbers per example."""

    layers: tuple[Layer, ...]
    shapes: tuple[torch.Size, ...]
    others: tuple[str, ...]
    numbers: int


def _trainable(module: nn.Module) -> Tensors:
    """The parameters that are trained, by name, in the order of the flat vector; detached."""
    require_trainable(module)
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


class ExampleGradients:
    """Per-example gradients of one module, with its parameters at each call.

    Args:
        module: Any module without buffers, in the mode, training or not, in which it is to be differentiated.
        loss: Mean loss of a batch from the module's output and the targets.
        batch: Examples at once; by default what an eighth of a gigabyte holds, 64 at most. It must not depend on the data.
        tapped: Whether linear layers and convolutions are tapped; else this is plain ``vmap(grad)``.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, batch: int | None = None, tapped: bool = True) -> None:
        self.module, self._loss, self._batch, self._tapped = module, loss, batch, tapped
        self.shapes = {name: p.shape for name, p in _trainable(module).items()}
        self._looked: _Look | None = None
        self._checked: tuple[int, int] | None = None
        self._together = False
        self._rows: torch.Tensor | None = None
        # Examples that failed since the last reset.
        self.failed = 0

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def fits(self) -> bool:
        """Whether the module still has the same trainable parameters."""
        return {name: p.shape for name, p in _trainable(self.module).items()} == self.shapes

    def rows(self, examples: Chosen) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The gradients of examples in batches; of an example that fails, zero, with a loss of NaN.

        Yields:
            Gradients ``(some, dim)``, which the next step overwrites, and losses ``(some,)``.
        """
        numbers = examples.numbers
        if not len(numbers):
            return
        if not self.batched(examples):
            with own_generators(examples.inputs.device):
                for number in numbers:
                    torch.manual_seed(examples.seed(number))
                    yield from isolated(lambda own: self._alone(*_taken(examples, own)), [number], self._nothing)
            return
        batch = self._size(self.dim)

        def together(part: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
            # Padded with copies of the first example, whose rows are left out.
            seen = self.seen(*_taken(examples, [*part, *[part[0]] * (batch - len(part))]))
            return self.flat(seen)[: len(part)], seen.losses[: len(part)]

        for start in range(0, len(numbers), batch):
            yield from isolated(together, numbers[start : start + batch], self._nothing)

    def batches(self, examples: Chosen) -> Iterator[Seen]:
        """Uses of layers by batches of examples, for norms and sums without explicit gradients."""
        numbers = examples.numbers
        if len(numbers):
            look = self._look_at(examples.inputs, examples.targets)
            # Only for a linear layer at one position the norm never needs an explicit gradient.
            layers = zip(look.layers, look.shapes, strict=True)
            made = {layer.weight for layer, shape in layers if layer.convolution or shape.numel() > shape[-1]} | {*look.others}
            size = self._size(sum(self.shapes[name].numel() for name in made), most=_MOST_SEEN)
            for start in range(0, len(numbers), size):
                part = numbers[start : start + size]
                yield from isolated(lambda some: self.seen(*_taken(examples, some)), part, self._unseen)

    def require_steady(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Refuse, on a probe batch of this form, a model that fails for every example, or depends on earlier ones."""
        made = probe_batch(inputs, targets, self.module, 2)

        def compute(number: int) -> torch.Tensor:
            with own_generators(inputs.device):
                torch.manual_seed(0)
                return self._alone(*(part[number : number + 1] for part in made))[0]

        require_steady(compute, inputs, targets)

    def batched(self, examples: Chosen) -> bool:
        """Whether examples are batched: checked before the first, and again if the number of threads changes."""
        self._look_at(examples.inputs, examples.targets)
        setting = self._size(self.dim), torch.get_num_threads()
        if self._checked != setting:
            self._together = self._same_bits(*probe_batch(examples.inputs, examples.targets, self.module, setting[0]))
            self._checked = setting
        return self._together

    def _look_at(self, inputs: torch.Tensor, targets: torch.Tensor) -> _Look:
        """The structure of the module, from one synthetic example: a real one that fails must not stop the others."""
        if self._looked is None:
            inputs, targets = probe_batch(inputs, targets, self.module, 1)
            fixed = _trainable(self.module)
            names = {id(p): name for name, p in fixed.items()} if self._tapped else {}
            with torch.no_grad(), own_generators(inputs.device), Taps(names, fixed) as mode:
                self._loss(called(self.module, {**self._constants(), **fixed}, inputs), targets)
            numbers = 2 * sum(t.numel() for t in mode.inputs) + 4 * sum(s.numel() for s in mode.shapes)
            others = tuple(name for name in fixed if name in mode.others or not self._tapped)
            self._looked = _Look(tuple(mode.layers), tuple(mode.shapes), others, numbers)
        return self._looked

    def _size(self, numbers: int, most: int = _MOST) -> int:
        """Examples at once, if each needs that many numbers in addition to the inputs of its layers."""
        seen = self._looked.numbers if self._looked else 0
        found = min(most, _ROOM // (seen + numbers))
        # Whole SIMD vectors, so that no example is in a remainder, which is summed another way.
        return self._batch or (found - found % _VECTOR if found > _VECTOR else max(1, found))

    def seen(self, inputs: torch.Tensor, targets: torch.Tensor, parameters: Tensors | None = None) -> Seen:
        """Losses, uses and other gradients of one batch, with the module's own parameters or given ones."""
        look = self._look_at(inputs, targets)
        fixed, constants = parameters or _trainable(self.module), self._constants()

        def loss_of(
            others: Tensors, taps: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor
        ) -> tuple[torch.Tensor, tuple[torch.Tensor, list[torch.Tensor]]]:
            """The loss of one example, and the inputs of its tapped layers."""
            parameters = {**fixed, **others}
            names = {id(p): name for name, p in parameters.items()} if self._tapped else {}
            with in_range(x.device), Taps(names, fixed, taps) as mode:
                output = called(self.module, {**constants, **parameters}, x.unsqueeze(0))
                value = self._loss(output, y.unsqueeze(0))
            if tuple(mode.layers) != look.layers:
                raise RuntimeError("the module's layers depend on the example")
            return value, (value, mode.inputs)

        zero = next(iter(fixed.values())).new_zeros(())
        taps = [zero.expand(len(inputs), *shape) for shape in look.shapes]
        differentiated = vmap(grad(loss_of, argnums=(0, 1), has_aux=True), in_dims=(None, 0, 0, 0))
        (others, deltas), (losses, saw) = differentiated({name: fixed[name] for name in look.others}, taps, inputs, targets)
        return Seen(losses.detach(), tuple(uses(look.layers, saw, deltas)), others)

    def flat(self, seen: Seen) -> torch.Tensor:
        """The gradient of each example, ``(examples, dim)``, in a buffer that the next call overwrites."""
        first = next(iter(_trainable(self.module).values()))
        if self._rows is None or len(self._rows) != len(seen.losses) or self._rows.device != first.device:
            self._rows = first.new_empty(len(seen.losses), self.dim)
        places, start = {}, 0
        for name, shape in self.shapes.items():
            places[name] = self._rows[:, start : start + shape.numel()]
            start += shape.numel()
        empty = set(places)
        for name, part in seen.others.items():
            places[name].copy_(part.flatten(1))
            empty.discard(name)
        for use in seen.uses:
            weight, bias = use.layer.weight, use.layer.bias
            if weight in empty and use.layer.convolution is None and use.deltas.shape[1] == 1:
                torch.mul(use.deltas.mT, use.inputs, out=places[weight].unflatten(1, self.shapes[weight]))
            else:
                _put(places[weight], weight_gradients(use).flatten(1), new=weight in empty)
            empty.discard(weight)
            if bias is not None:
                _put(places[bias], bias_gradients(use), new=bias in empty)
                empty.discard(bias)
        for name in empty:
            places[name].zero_()
        return self._rows

    def _same_bits(self, inputs: torch.Tensor, targets: torch.Tensor) -> bool:
        """Whether ``vmap`` supports the module, and an example's gradient has the same bits at any place and next to any other.

        A test of kernels, which depend on shapes alone: with synthetic examples and weights, since real ones must not decide
        over the last bits of all gradients, and zeros would hide differences.
        """
        numbers = torch.arange(len(inputs), device=inputs.device)
        try:
            as_is = self._bits(inputs, targets)
            for moved in (numbers.roll(1), numbers.flip(0)):
                if not torch.equal(self._bits(inputs[moved], targets[moved]), as_is[moved]):
                    return False
            # The same example at each place; several, since not all numbers reveal the order of a sum.
            for one in numbers[:8]:
                copies = self._bits(inputs[one.expand_as(numbers)], targets[one.expand_as(numbers)])
                if not torch.equal(copies, as_is[one].expand_as(copies)):
                    return False
            if not inputs.is_floating_point():
                return True
            spoilt = inputs.clone()
            spoilt[::2] = torch.nan
            return torch.equal(self._bits(spoilt, targets)[1::2], as_is[1::2])
        except Exception:  # noqa: BLE001 # whatever vmap does not support; a faulty module fails one by one, too
            return False

    def _bits(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = self.flat(self.seen(inputs, targets, shaken(_trainable(self.module))))
        return found.clone().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()])

    def _nothing(self, number: int, error: Exception) -> tuple[torch.Tensor, torch.Tensor]:
        """The zero gradient and the loss of an example that fails."""
        seen = self._unseen(number, error)
        return seen.losses.new_zeros(1, self.dim), seen.losses

    def _unseen(self, number: int, error: Exception) -> Seen:
        """The place of an example that fails."""
        self.failed += 1
        note(f"example {number}", reason(error))
        first = next(iter(_trainable(self.module).values()))
        return Seen(first.new_full((1,), torch.nan), (), {})

    def _alone(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of a single example, ``(1, dim)``, and its loss, ``(1,)``."""
        with torch.enable_grad(), in_range(inputs.device):
            parameters = {name: p.requires_grad_() for name, p in _trainable(self.module).items()}
            value = self._loss(called(self.module, {**self._constants(), **parameters}, inputs), targets)
            found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(1, -1) for part in found], dim=1), value.detach().reshape(1)

    def _constants(self) -> Tensors:
        """Copies of frozen parameters and buffers: a module's changes of them must not reach the next examples."""
        frozen = {name: p.detach().clone() for name, p in self.module.named_parameters() if not p.requires_grad}
        return {**frozen, **{name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}}


def _taken(examples: Chosen, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of some examples."""
    rows = torch.tensor(list(numbers), device=examples.inputs.device)
    return examples.inputs[rows], examples.targets[rows]


def _put(place: torch.Tensor, gradient: torch.Tensor, *, new: bool) -> None:
    """Write a layer's gradient to its place; several uses of one weight add up."""
    if new:
        place.copy_(gradient)
    else:
        place.add_(gradient)
