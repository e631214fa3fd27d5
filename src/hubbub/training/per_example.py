"""Examples as units: the gradient of each single example, clipped, and the sum of the negatives.

``vmap`` batches the computation of one example, so that no layer can mix examples. A batch always has the same number of
examples, the last one padded, so that kernels are the same. A module is first checked with synthetic examples, permuted and
next to others that are NaN: no bit may change. If ``vmap`` does not support the module, if it draws random numbers, or if bits
change, examples are taken one by one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from weakref import WeakKeyDictionary, WeakMethod, ref

import torch
from torch import nn
from torch.func import grad, vmap

from hubbub._util.checks import integer
from hubbub._util.prf import fresh_key, seed_for
from hubbub.errors import ConfigError, DataError
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import Cohort, LatticeSum, LocalPopulation, PlainSum, Values, lattice_of, statistics
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.evaluation import measured
from hubbub.training.ranks import Ranks, fingerprint, word
from hubbub.training.simulation.faults import agree, isolated, note, opposite, probe_batch, reason, require_steady, shaken
from hubbub.training.simulation.functional import (
    Attributes,
    Constants,
    attributes_left,
    called,
    in_range,
    own_generators,
    repeatable,
    require_trainable,
    seed_generators,
)
from hubbub.training.simulation.local import Examples, Loss, own_loss, require_loss, trainable
from hubbub.training.simulation.stacks import keep_freed_memory

Tensors = dict[str, torch.Tensor]
# Gradients ``(some, dim)`` and losses ``(some,)``.
Rows = tuple[torch.Tensor, torch.Tensor]
# Numbers in the gradients and activations of a batch, and the most examples in it, on a processor and on a GPU.
_ROOM, _MOST = (2**25, 2**29), (64, 1024)
# Numbers in the gradients of more than a few examples: with more a batch leaves a processor's cache.
_FEW, _GRADIENTS = 8, (5_000_000, 2**29)
_VECTOR = 16


@dataclass(frozen=True)
class Chosen:
    """The examples of these numbers, of all inputs and targets, ``(examples, …)``; each with a seed of random layers."""

    inputs: torch.Tensor
    targets: torch.Tensor
    numbers: Sequence[int]
    seed: Callable[[int], int]

    def taken(self, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some examples."""
        rows = torch.tensor(list(numbers), device=self.inputs.device)
        return self.inputs[rows], self.targets[rows]


def _form(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[object, ...]:
    return tuple((part.shape[1:], part.dtype, part.device) for part in (inputs, targets))


class _Differentiated(nn.Module):
    """A module's gradients, computed while other tensors stand in for its own: a backward pass may call the module again."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self._loss = module, loss

    def forward(
        self, given: tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """The gradients of the given parameters, and the loss."""
        inputs, targets, parameters = given
        value = self._loss(self.module(inputs), targets)
        return torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True), value


class ExampleGradients:
    """Per-example gradients of one module without buffers, with its parameters at each call, in its mode, training or not.

    ``batch`` is as for :class:`ExamplePopulation`.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, batch: int | None = None) -> None:
        require_trainable(module, loss)
        # What the loss keeps of one example must not reach the next one.
        self.module, self._loss = module, own_loss(loss)
        self._differentiated, self._of_loss = _Differentiated(module, self._loss), Constants(self._loss)
        self.shapes = {name: p.shape for name, p in trainable(module).items()}
        self._batch, self._attributes = batch, Attributes(module)
        # Else every batch touches new pages: two thirds of the time of a dense layer of 123,000 parameters.
        keep_freed_memory()
        # By the form of the examples: how many are computed at once, and, by all else that kernels depend on, whether they are.
        self.known: dict[object, int] = {}
        # Examples that failed since the last reset.
        self.failed = 0

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def modes(self) -> tuple[bool, ...]:
        """Of each part of the module, whether it is in training mode."""
        return tuple(part.training for part in self.module.modules())

    def rows(self, examples: Chosen) -> Iterator[Rows]:
        """The gradients of examples in batches, with their losses; of an example that fails, zero and NaN."""
        numbers = examples.numbers
        if not len(numbers):
            return
        together, batch = self.batched(examples), self.size(examples.inputs, examples.targets)
        first, device = next(iter(trainable(self.module).values())), examples.inputs.device

        def alone(number: int) -> Rows:
            seed_generators(examples.seed(number), device)
            return next(isolated(lambda own: self._alone(*examples.taken(own)), [number], self._nothing))

        def padded(part: Sequence[int]) -> Rows:
            # With copies of the first example, whose rows are left out.
            rows, losses = self.of_batch(*examples.taken([*part, *[part[0]] * (batch - len(part))]))
            return rows[: len(part)], losses[: len(part)]

        for start in range(0, len(numbers), batch):
            part = numbers[start : start + batch]
            if together:
                # Alone, what fails together.
                with own_generators(device):
                    yield from isolated(padded, part, lambda number, _: alone(number))
                continue
            # Each alone, and a batch of rows together, since rounding them costs less than a call for each.
            rows, losses = first.new_empty(len(part), self.dim), first.new_empty(len(part))
            with own_generators(device):
                for place, number in enumerate(part):
                    rows[place : place + 1], losses[place : place + 1] = alone(number)
            yield rows, losses

    def require_steady(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Refuse, on a probe batch of this form, a model that fails for every example, or depends on earlier ones."""
        made = probe_batch(inputs, targets, self.module, 2)
        opposite(made[0], 1)

        def compute(number: int) -> torch.Tensor:
            with own_generators(inputs.device):
                seed_generators(0, inputs.device)
                return self._alone(*(part[number : number + 1].clone() for part in made))[0]

        require_steady(compute, inputs, targets)
        self._require_reached(made[0][:1], made[1][:1])

    def _require_reached(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Refuse a module that uses a parameter past its name: copies stand in for names, and it would not be trained."""
        try:
            module, device = deepcopy(self.module), inputs.device
        except Exception:  # noqa: BLE001 # what cannot be copied is not tried
            return
        own = list(trainable(module).values())
        with own_generators(device), torch.enable_grad(), in_range(device), repeatable(device):
            seed_generators(0, device)
            mine = self._alone(inputs.clone(), targets)[0][0]
            seed_generators(0, device)
            value = self._loss(module(inputs.clone()), targets)
            found = torch.autograd.grad(value, own, allow_unused=True, materialize_grads=True)
        rough = 1e-3 if mine.element_size() > 2 else 0.1
        if not agree(mine, torch.cat([part.to_dense().reshape(-1) for part in found]), rough):
            raise ConfigError(
                "model: uses a parameter past its name, such as from a list, so that its gradient would be 0 and it would not "
                "be trained; let each layer read it from its own attribute"
            )

    def batched(self, examples: Chosen) -> bool:
        """Whether examples are batched: tried before the first of a form, and for another mode, autocast or threads."""
        inputs, targets = examples.inputs, examples.targets
        by = _form(inputs, targets), torch.get_num_threads(), torch.is_autocast_enabled(inputs.device.type), self.modes
        if by not in self.known:
            made, labels = probe_batch(inputs, targets, self.module, self.size(inputs, targets))
            # Numbers of both signs show orders of a sum that positive ones hide.
            both = (made, (4 * made - 2).to(made.dtype)) if made.is_floating_point() else (made,)
            self.known[by] = all(self._same_bits(one, labels) for one in both)
        return bool(self.known[by])

    def size(self, inputs: torch.Tensor, targets: torch.Tensor) -> int:
        """Examples at once, by the numbers that one synthetic example needs: the size must not depend on data."""
        if self._batch is not None:
            return self._batch
        if (form := _form(inputs, targets)) not in self.known:
            saved = 0

            def count(tensor: torch.Tensor) -> torch.Tensor:
                nonlocal saved
                saved += tensor.numel()
                return tensor

            with own_generators(inputs.device), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                self._alone(*probe_batch(inputs, targets, self.module, 1))
            gpu = inputs.device.type != "cpu"
            found = min(_MOST[gpu], max(1, min(_ROOM[gpu] // (self.dim + saved), max(_FEW, _GRADIENTS[gpu] // self.dim))))
            # Whole SIMD vectors, so that no example is in a remainder, which is summed another way.
            self.known[form] = found - found % (_VECTOR if found > _VECTOR else _FEW) if found > _FEW else found
        return self.known[form]

    def of_batch(self, inputs: torch.Tensor, targets: torch.Tensor, parameters: Tensors | None = None) -> Rows:
        """The gradient of each example of one batch and its loss, with the module's own parameters or given ones."""
        constants = self._constants()

        def loss_of(values: Tensors, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with in_range(x.device):
                value = self._loss(called(self.module, {**constants, **values}, x.unsqueeze(0)), y.unsqueeze(0))
            return value, value

        # Each example begins a whole vector: a sum over numbers of an odd width would depend on where its example lies.
        size = inputs[0].numel()
        room = inputs.new_empty(len(inputs), -(-size // _VECTOR) * _VECTOR)
        placed = room[:, :size].view(inputs.shape).copy_(inputs)
        differentiated = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0))
        with repeatable(inputs.device):
            # Copies: a module may write into its weights.
            given = {name: p.detach().clone() for name, p in (parameters or trainable(self.module)).items()}
            found, losses = differentiated(given, placed, targets)
        return torch.cat([part.reshape(len(part), -1) for part in found.values()], dim=1), losses.detach()

    @attributes_left()
    def _same_bits(self, inputs: torch.Tensor, targets: torch.Tensor) -> bool:
        """Whether ``vmap`` supports the module, and an example's gradient has the same bits at any place and next to any other.

        A test of kernels, which depend on shapes alone: with synthetic examples and weights, since real ones must not decide
        over the last bits of all gradients, and zeros would hide differences.
        """
        numbers = torch.arange(len(inputs), device=inputs.device)
        try:
            as_is = self._bits(inputs, targets)
            finite = as_is.view(next(iter(trainable(self.module).values())).dtype).isfinite().all(1)
            if not bool(finite.float().mean() >= 0.5):
                # What is not finite is alike whatever it depends on.
                return False
            # The same example at each place, too; several, since not all numbers reveal the order of a sum.
            for moved in (numbers.roll(1), numbers.flip(0), *(one.expand_as(numbers) for one in numbers[:8])):
                if not torch.equal(self._bits(inputs[moved], targets[moved]), as_is[moved]):
                    return False
            if not inputs.is_floating_point():
                return True
            spoilt = inputs.clone()
            spoilt[::2] = torch.nan
            return torch.equal(self._bits(spoilt, targets)[1::2], as_is[1::2])
        except Exception:  # noqa: BLE001 # whatever vmap does not support; a faulty module fails one by one, too
            return False

    def _bits(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found, _ = self.of_batch(inputs, targets, shaken(trainable(self.module)))
        return found.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()])

    def _nothing(self, number: int, error: Exception) -> Rows:
        """The zero gradient and the loss of an example that fails."""
        self.failed += 1
        note(f"example {number}", reason(error))
        first = next(iter(trainable(self.module).values()))
        return first.new_zeros(1, self.dim), first.new_full((1,), torch.nan)

    def _alone(self, inputs: torch.Tensor, targets: torch.Tensor) -> Rows:
        """The gradient of a single example, ``(1, dim)``, and its loss, ``(1,)``."""
        constants = self._constants()
        with torch.enable_grad(), in_range(inputs.device), repeatable(inputs.device):
            # Copies: a module may write into its weights, as Embedding(max_norm) does, which must not reach the next examples.
            parameters = {name: p.detach().clone().requires_grad_() for name, p in trainable(self.module).items()}
            given = {f"module.{name}": value for name, value in {**constants, **parameters}.items()}
            found, value = called(self._differentiated, given, (inputs, targets, list(parameters.values())))
        return torch.cat([part.to_dense().reshape(1, -1) for part in found], dim=1), value.detach().reshape(1)

    def _constants(self) -> Tensors:
        """Copies of frozen parameters and buffers: neither changes of them nor what the loss keeps reach the next."""
        self._attributes.restore()
        self._of_loss.restore()
        frozen = {name: p.detach().clone() for name, p in self.module.named_parameters() if not p.requires_grad}
        return {**frozen, **{name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}}


class ExamplePopulation(LocalPopulation):
    """Examples as two tensors; the server's learning rate is that of SGD, since the mean update is minus the mean gradient.

    Args:
        inputs: ``(examples, …)``. Gradients are computed and summed where they are, on a processor or on a GPU.
        targets: ``(examples, …)``.
        loss: Mean loss of a batch from the module's output and the targets; of single examples here.
        seed: Of random layers (dropout): each example in each round has its own seed, and is then computed alone; a run with
            secure noise draws these seeds under a secret key.
        lattice: Whether clipped gradients are summed as integers, as a release needs; ``False`` sums in floating point, for
            simulations only.
        batch: Examples in memory at once; by default what 128 MiB of gradients and activations hold in float32, 64 at most, and
            of more than 8 what has 5,000,000 numbers in its gradients; on a GPU 2 GiB, 1,024 at most.
        ranks: The processes that divide a cohort, each of which makes the population; by default this one alone.

    An example's contribution depends, to the last bit, on the model, the example and its seed alone, not on the rest of the
    cohort. A module must not keep plain attributes from one call to the next. An example whose gradient fails, such as for a
    target that is no class, counts as zero; the logger ``hubbub`` and the private ``failed`` of a round's statistics report it
    to the operator.

    Raises:
        DataError: Inputs and targets that are no tensors or of different lengths, or no example.
        ValueError: ``batch`` below 1.

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
        batch: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(inputs, "example", ranks, seed)
        require_loss(loss)
        _require_pairs(inputs, targets)
        if batch is not None:
            integer("batch", batch, at_least=1)
        if not len(inputs):
            raise DataError("inputs: there are no examples")
        self._inputs, self._targets, self._loss = inputs, targets, loss
        self._lattice, self._batch = lattice, batch
        self._model: nn.Module | None = None
        self._gradients: ExampleGradients

    def prepare(self, model: nn.Module, _: int) -> None:
        """Refuse, on a probe batch, a model that fails for every example, or depends on earlier ones.

        Raises:
            ConfigError: It does.
            RankError: A rank has other examples, or computes them in another way.
        """
        # Frozen parameters may have changed since another run.
        self._model = None
        gradients = self._of(model)
        if self._ranks.size > 1:
            everyone = Chosen(self._inputs, self._targets, range(len(self._inputs)), lambda _: 0)
            given = (self._inputs, self._targets, word(self._loss), self._key, self._lattice)
            self._ranks.require_same("data, loss or seed", lambda: fingerprint(*given))
            self._ranks.require_same(
                "way to compute gradients", lambda: (gradients.batched(everyone), gradients.size(self._inputs, self._targets))
            )

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
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
        injected = self._injected(chosen, model, round_index)
        further = ((-update[None].to(self._inputs.device), torch.tensor([math.nan])) for _, update in injected)
        lattice = lattice_of(clip_norm, split) if self._lattice and clip_norm is not None else None
        total, private = _clipped_sum(
            gradients, examples, clip_norm, lattice, split, further, self._ranks, partial(fingerprint, round_index)
        )
        total[: gradients.dim].neg_()
        return LatticeSum(total, lattice, private) if lattice else PlainSum(total, private)

    def measure(self, cohort: Cohort, model: nn.Module) -> list[Values]:
        """``accuracy`` and ``loss`` of each example; ``None`` of one that fails."""
        numbers = [int(str(number)) for number in cohort]
        return [measured(model, partial(self._one, n), self._loss, f"example {n}") for n in numbers]

    def _one(self, number: int) -> Examples:
        return self._inputs[number : number + 1], self._targets[number : number + 1]

    def _of(self, model: nn.Module) -> ExampleGradients:
        """Per-example gradients of a copy of the model, so that the model itself stays as it is."""
        if model is not self._model:
            require_trainable(model, self._loss)
            copied = deepcopy(model).to(self._inputs.device).train()
            gradients = ExampleGradients(copied, self._loss, batch=self._batch)
            gradients.require_steady(self._inputs, self._targets)
            self._model, self._gradients = model, gradients
        with torch.no_grad():
            for mine, given in zip(self._gradients.module.parameters(), model.parameters(), strict=True):
                mine.copy_(given)
        return self._gradients


# By module, so that a user's loop does not check its module in each step. A loss is held weakly: it may be a method of that
# module.
_Weakly = Callable[[], Loss | None]
_KNOWN: WeakKeyDictionary[nn.Module, tuple[_Weakly, dict[str, torch.Size], dict[object, int]]] = WeakKeyDictionary()


def _weakly(loss: Loss) -> _Weakly:
    try:
        return WeakMethod(loss) if isinstance(loss, MethodType) else ref(loss)
    except TypeError:
        return lambda: loss


def private_gradients(
    model: nn.Module,
    loss: Loss,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    *,
    ranks: Ranks | None = None,
) -> LatticeSum:
    """The sum of the clipped gradients of single examples, for a user's training loop.

    It is no release: ``ReleasePath`` records the cost of the step, and adds its row of noise.

    Args:
        model: Any module without buffers, in its training or evaluation mode; it stays as it is.
        loss: Mean loss of a batch from the module's output and the targets. Give the same one in each step: a new lambda is
            tried anew, which takes longer than the step.
        inputs: Of the step's examples, ``(examples, …)``; possibly zero of them.
        targets: ``(examples, …)``.
        clip_norm: The largest norm of one gradient, all trainable parameters as one vector.
        ranks: The processes that divide the examples, each of which calls this with all of them; by default this one alone.

    Returns:
        ``(dim,)``, in the order of ``model.parameters()`` without frozen ones. ``statistics`` (mean loss, clipped fraction) are
        private. Dropout and the like draw from a fresh secret key for each example.

    Raises:
        ConfigError: No trainable parameter, several dtypes, a buffer, or a loss with trainable parameters.
        DataError: Inputs and targets that are no tensors or of different lengths.
        ValueError: The clip norm is out of range.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> total = private_gradients(model, nn.functional.cross_entropy, torch.randn(5, 3), torch.zeros(5).long(), 1.0)
        >>> total.total.shape, bool(total.open(None).norm() <= 5.0)
        (torch.Size([8]), True)
    """
    _require_pairs(inputs, targets)
    gradients, kept = ExampleGradients(model, loss), _KNOWN.get(model)
    # Two accesses to a method are two objects, which are equal.
    if kept and kept[0]() == loss and kept[1] == gradients.shapes:
        gradients.known = kept[2]
    _KNOWN[model] = _weakly(loss), gradients.shapes, gradients.known
    # In another mode, or of examples of another form, a model may keep what it did not keep before.
    steady = "steady", _form(inputs, targets), gradients.modes
    if steady not in gradients.known:
        gradients.require_steady(inputs, targets)
        gradients.known[steady] = 1
    key, lattice = fresh_key(), Lattice(clip_norm)
    examples = Chosen(inputs, targets, range(len(inputs)), lambda number: seed_for(key, number))
    given = partial(fingerprint, inputs, targets, word(loss))
    total, private = _clipped_sum(gradients, examples, clip_norm, lattice, ranks=ranks, given=given)
    return LatticeSum(total, lattice, private, units=len(inputs))


def _require_pairs(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    for name, part in (("inputs", inputs), ("targets", targets)):
        if not isinstance(part, torch.Tensor) or not part.ndim:
            raise DataError(f"{name}: are a {type(part).__name__}; make a torch.Tensor of them, with one example a row")
    if len(inputs) != len(targets):
        raise DataError(f"inputs: there are {len(inputs)}, and {len(targets)} targets")


def _clipped_sum(
    gradients: ExampleGradients,
    examples: Chosen,
    clip_norm: float | None,
    lattice: Lattice | None,
    split: CountSplit | None = None,
    further: Iterable[Rows] = (),
    ranks: Ranks | None = None,
    given: Callable[[], str] = str,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The sum, in whole steps if there is a lattice, else in float64, and the operator's statistics of the round: private.

    ``given`` is a digest of the examples, which all ranks must share.
    """
    kind, device = torch.int64 if lattice else torch.float64, examples.inputs.device
    zero = torch.zeros(gradients.dim + (split is not None), dtype=kind, device=device)

    def chunk(rows_of: Callable[[], Iterable[Rows]], total: torch.Tensor) -> tuple[list[bool], list[float], int]:
        clipped, losses = list[bool](), list[float]()
        for rows, found in rows_of():
            losses += found.tolist()
            if lattice and split is None:
                clipped += lattice.encode_rows(rows, total).tolist()
                continue
            for row in rows:
                part, was_clipped = bounded(row, clip_norm, lattice, split)
                total += part
                clipped.append(was_clipped)
        failed, gradients.failed = gradients.failed, 0
        return clipped, losses, failed

    numbers, size = examples.numbers, gradients.size(examples.inputs, examples.targets)
    batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]

    def terms() -> str:
        return fingerprint(batches, clip_norm, given(), *gradients.module.parameters())

    chunks = [partial(chunk, partial(gradients.rows, replace(examples, numbers=some))) for some in batches]
    total, found = (ranks or Ranks()).summed([*chunks, partial(chunk, lambda: further)], zero, terms)
    clipped = [flag for flags, _, _ in found for flag in flags]
    losses, failed = [loss for _, some, _ in found for loss in some], sum(some for _, _, some in found)
    return total, statistics(len(clipped), sum(clipped), losses) | ({"failed": float(failed)} if failed else {})
