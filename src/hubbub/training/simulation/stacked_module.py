"""A forward pass of an unmodified module for many clients at once.

The module's ``forward`` runs once, under ``torch.func.vmap`` over the clients' parameters and batches. Costly layers take a
faster form: convolutions, poolings and group norms of all clients are one operation in which every client is a group of
channels, channels last; linear layers are one batched matrix product. Everything else is left to ``vmap``. A module that cannot
run so raises, and clients then train one by one.

Letters: K, clients at once; B, examples of each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know
from torch.overrides import TorchFunctionMode

from hubbub.errors import HubbubError
from hubbub.training.simulation.faults import require_own
from hubbub.training.simulation.functional import called, places

# Weights of an LSTM layer in one direction: of inputs and of the state, with biases or without.
_WITH_BIAS, _WITHOUT = 4, 2
Dims = Sequence[int | None]
# Outputs of all clients, and the clients' dimension of each.
Rule = Callable[..., tuple[Any, Any]]


class NotStackableError(HubbubError):
    """A module, or a layer of it, that does not run for many clients at once."""


class StackedModel:
    """A module, in training mode, that runs for K clients at once, each with parameters of its own in place of the module's."""

    def __init__(self, module: nn.Module, clients: int) -> None:
        self._module, self._clients = module, clients
        self._names = {id(p): name for name, p in module.named_parameters()}
        self._places = places(module)

    def __call__(
        self,
        parameters: Mapping[str, torch.Tensor],
        inputs: torch.Tensor,
        counts: Sequence[int],
        generators: Sequence[torch.Generator],
    ) -> torch.Tensor:
        """The outputs, ``(K, B, *)``, of inputs ``(K, B, *shape)`` and the trainable parameters by name, each ``(K, *shape)``.

        ``counts`` says how many of the B examples are each client's; the rest is padding. ``generators`` are of each client's
        dropout.
        """

        def forward(batch: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
            own = dict(zip(parameters, values, strict=True))
            with _Rewriting(self._names, own, counts, generators):
                output = called(self._module, own, batch, self._places)
            if not isinstance(output, torch.Tensor):
                raise NotStackableError(f"its output is a {type(output).__name__}")
            return output

        try:
            found: torch.Tensor = vmap(forward)(inputs, *parameters.values())
        except Exception as error:
            require_own(error)
            raise NotStackableError(f"{type(error).__name__}: {error}") from error
        return found


class _Rewriting(TorchFunctionMode):
    """A context in which costly layers take the forms of :data:`_FORMS`."""

    def __init__(
        self,
        names: Mapping[int, str],
        own: Mapping[str, torch.Tensor],
        counts: Sequence[int],
        generators: Sequence[torch.Generator],
    ) -> None:
        super().__init__()
        self.names, self.own, self.counts, self.generators = names, own, counts, generators

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The result of a layer."""
        form = _FORMS.get(func)
        found = NotImplemented if form is None else form(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


def _apply(rule: Rule, *tensors: torch.Tensor | None) -> Any:
    """The rule's output for the tensors of all clients.

    The rule takes them as the ``vmap`` of a custom function would, whose path through Python takes longer than a small layer.
    Without any per-client tensor it computes for a single client, and all share the output.
    """
    # Private names of torch: clients train one by one under a version that has others.
    from torch._C import _functorch
    from torch._functorch import pyfunctorch

    level = pyfunctorch.retrieve_current_functorch_interpreter()
    if not isinstance(level, pyfunctorch.VmapInterpreter):
        raise NotStackableError(f"a layer within another transform, {level.key().name}")
    number, given = level.level(), [tensor for tensor in tensors if tensor is not None]
    physical, dims = zip(*(_functorch._unwrap_batched(tensor, number) for tensor in given), strict=True)
    shared = all(dim is None for dim in dims)

    def shown(x: torch.Tensor, dim: int | None) -> torch.Tensor:
        if dim is None:
            return x
        return x.select(dim, 0) if shared else _functorch._add_batch_dim(x, dim, number)

    with level.lower():
        made, at = rule(1 if shared else level.batch_size(), dims, *physical)
    return tuple(map(shown, made, at)) if isinstance(made, tuple) else shown(made, at)


def _in_channels(x: torch.Tensor, dim: int | None, clients: int) -> torch.Tensor:
    """``(B, K·C, *)``: every client a group of channels, channels last."""
    if dim is None:
        x = x.unsqueeze(1).expand(-1, clients, *x.shape[1:])
    merged = (x if dim in (None, 1) else x.movedim(dim, 1)).flatten(1, 2)
    return merged.contiguous(memory_format=torch.channels_last) if merged.ndim == 4 else merged.contiguous()


def _convolution(function: Callable[..., torch.Tensor], spatial: int) -> Callable[..., Any]:

    def form(
        _: _Rewriting,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if x.ndim != spatial + 2:
            return NotImplemented

        def rule(clients: int, dims: Dims, x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, int]:
            own, *shift = (_stack(part, dim, clients).flatten(0, 1) for part, dim in zip(weights, dims[1:], strict=True))
            given = _in_channels(x, dims[0], clients), own, shift[0] if shift else None
            out = function(*given, stride, padding, dilation, groups * clients)
            return out.unflatten(1, (clients, -1)), 1

        return _apply(rule, x, weight, bias)

    return form


def _pooling(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:

    def form(_: _Rewriting, x: torch.Tensor, *options: Any, return_indices: bool = False, **named: Any) -> Any:
        if x.ndim != 4 or return_indices:
            return NotImplemented

        def rule(clients: int, dims: Dims, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return function(_in_channels(x, dims[0], clients), *options, **named).unflatten(1, (clients, -1)), 1

        return _apply(rule, x)

    return form


def _group_norm(
    _: _Rewriting,
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if (weight is None) != (bias is None):
        return NotImplemented

    def rule(clients: int, dims: Dims, x: torch.Tensor, *scales: torch.Tensor) -> tuple[torch.Tensor, int]:
        own = [_stack(scale, dim, clients).flatten() for scale, dim in zip(scales, dims[1:], strict=True)]
        own_weight, own_bias = own or (None, None)
        out = F.group_norm(_in_channels(x, dims[0], clients), num_groups * clients, own_weight, own_bias, eps)
        return out.unflatten(1, (clients, -1)), 1

    return _apply(rule, x, weight, bias)


class _Affine(torch.autograd.Function):
    """Rows times each client's weights, plus its bias.

    The gradient of the weights has their memory layout. Autograd's is transposed, which makes a step several times slower.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``(K, B, in)``, ``(K, out, in)`` and ``(K, out)`` to ``(K, B, out)``."""
        ctx.save_for_backward(rows, weight)
        across = weight.transpose(1, 2)
        return torch.bmm(rows, across) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, across)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs that need one."""
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            torch.bmm(slope, weight) if of_rows else None,
            torch.bmm(slope.transpose(1, 2), rows) if of_weight else None,
            slope.sum(dim=1) if of_bias else None,
        )


def _linear(_: _Rewriting, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """A linear layer: one batched product of matrices."""

    def rule(clients: int, dims: Dims, *tensors: torch.Tensor) -> tuple[torch.Tensor, int]:
        stacked, *weights = (_stack(part, dim, clients) for part, dim in zip(tensors, dims, strict=True))
        rows, across, *shift = map(_narrowed, (stacked.reshape(clients, -1, stacked.shape[-1]), *weights))
        out = _Affine.apply(rows, across, shift[0] if shift else None)  # type: ignore[no-untyped-call] # torch leaves it without types
        return out.reshape(*stacked.shape[:-1], -1), 0

    return _apply(rule, x, weight, bias)


def _narrowed(x: torch.Tensor) -> torch.Tensor:
    """In the dtype of autocast, if that is on."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _within(indices: torch.Tensor, rows: int) -> Any:
    """The indices, checked: ``vmap`` puts the clients' tables end to end, and would read another client's row."""

    def rule(_: int, dims: Dims, x: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        lowest, highest = (int(bound) for bound in torch.aminmax(x)) if x.numel() else (0, 0)
        if lowest < 0 or highest >= rows:
            raise IndexError(f"index out of range: an embedding of {rows} rows is asked for those from {lowest} to {highest}")
        return x.clone(), dims[0]

    return _apply(rule, indices)


def _embedding(
    _: _Rewriting,
    x: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """Rows of each client's table; that of ``padding_idx`` gets no gradient in any of them.

    Left to ``vmap``, which puts the tables end to end, that would be one row of the first client's.
    """
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotStackableError("an embedding with max_norm, scale_grad_by_freq or sparse gradients")
    found = F.embedding(_within(x, len(weight)), weight)
    if padding_idx is None:
        return found
    return torch.where((x == padding_idx % len(weight)).unsqueeze(-1), found.detach(), found)


def _unlike(what: str) -> Callable[..., Any]:
    """A form of layers whose result for one client depends on the others."""

    def form(*_: Any, **__: Any) -> Any:
        raise NotStackableError(what)

    return form


def _stack(x: torch.Tensor, dim: int | None, clients: int) -> torch.Tensor:
    """``(K, *shape)``; a tensor that all clients share is repeated."""
    if dim is None:
        return x.unsqueeze(0).expand(clients, *x.shape)
    return x.movedim(dim, 0) if dim else x


def _view(_: _Rewriting, x: torch.Tensor, *shape: Any, **named: Any) -> Any:
    """A view as a reshape: a view of one client's tensor may need a copy of the stacked one."""
    if named or not all(isinstance(part, int | tuple | list) for part in shape):
        return NotImplemented
    return x.reshape(*shape)


def _dropout(feature: bool) -> Callable[..., Any]:
    """Dropout of single numbers, or of whole features."""

    def form(mode: _Rewriting, x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0 or inplace or (feature and x.ndim < 3):
            return NotImplemented

        def rule(clients: int, dims: Dims, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            if dims[0] is None:
                raise NotStackableError("dropout of what is the same for all clients")
            stacked = _stack(x, dims[0], clients)
            shape = stacked.shape[2:3] + (1,) * (stacked.ndim - 3) if feature else stacked.shape[2:]
            kept = torch.zeros(clients, stacked.shape[1], *shape, dtype=x.dtype, device=x.device)
            for own, count, generator in zip(kept, mode.counts, mode.generators, strict=False):
                # As the client alone would draw it, from its own generator: padding draws nothing.
                own[:count] = torch.empty_like(own[:count]).bernoulli_(1 - p, generator=generator)
            return stacked * kept.div_(1 - p), 0

        return _apply(rule, x)

    return form


def _lstm(mode: _Rewriting, x: torch.Tensor, state: Any, weights: Any, *options: Any) -> Any:
    """An LSTM without dropout between its layers, of sequences of one length."""
    # Packed sequences are called with other arguments.
    if not isinstance(state, tuple | list) or len(options) != 6 or x.ndim != 3:
        return NotImplemented
    bias, _, dropout, training, bidirectional, batch_first = options
    if dropout and training:
        return NotImplemented
    # The layer holds its weights in a list, which functional_call does not replace.
    own = [mode.own.get(mode.names.get(id(weight), ""), weight) for weight in weights]

    def rule(clients: int, dims: Dims, *tensors: torch.Tensor) -> tuple[Any, Any]:
        inputs, *others = (_stack(tensor, dim, clients) for tensor, dim in zip(tensors, dims, strict=True))
        # (K, T, B, features), and twice (K, layers · directions, B, hidden).
        out, hidden, cells = inputs.transpose(1, 2) if batch_first else inputs, *others[:2]
        each, directions, last = _WITH_BIAS if bias else _WITHOUT, 2 if bidirectional else 1, []
        for first in range(0, len(others[2:]) // each, directions):
            outputs = []
            for number in range(first, first + directions):
                backwards = number - first == 1
                of_pass = others[2 + number * each : 2 + (number + 1) * each]
                made, *ends = _lstm_pass(out.flip(1) if backwards else out, hidden[:, number], cells[:, number], of_pass)
                outputs.append(made.flip(1) if backwards else made)
                last.append(ends)
            out = torch.cat(outputs, dim=-1) if bidirectional else outputs[0]
        ends_of_all = (torch.stack(some, dim=1) for some in zip(*last, strict=True))
        return (out.transpose(1, 2) if batch_first else out, *ends_of_all), (0, 0, 0)

    return _apply(rule, x, *state, *own)


def _lstm_pass(
    inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, the last hidden state and the last cell of one pass; gates in torch's order: input, forget, cell, output.

    Source: Hochreiter and Schmidhuber 1997.
    """
    clients, length, batch, _ = inputs.shape
    from_inputs, from_state = (weight.transpose(1, 2) for weight in weights[:2])
    rows = inputs.reshape(clients, length * batch, -1)
    if len(weights) == _WITH_BIAS:
        gates = torch.baddbmm((weights[2] + weights[3]).unsqueeze(1), rows, from_inputs)
    else:
        gates = torch.bmm(rows, from_inputs)
    width, outputs = h.shape[-1], []
    for at_step in gates.view(clients, length, batch, 4 * width).unbind(1):
        all_gates = torch.baddbmm(at_step, h, from_state)
        let_in, forget = all_gates[..., : 2 * width].sigmoid().chunk(2, dim=-1)
        c = forget * c + let_in * all_gates[..., 2 * width : 3 * width].tanh()
        h = all_gates[..., 3 * width :].sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs, dim=1), h, c


# By the function that a layer calls; calls within it are not seen here.
_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.conv1d: _convolution(torch.conv1d, 1),
    torch.conv2d: _convolution(torch.conv2d, 2),
    torch.max_pool2d: _pooling(torch.max_pool2d),
    F.max_pool2d: _pooling(F.max_pool2d),
    F.avg_pool2d: _pooling(F.avg_pool2d),
    F.adaptive_avg_pool2d: _pooling(F.adaptive_avg_pool2d),
    F.group_norm: _group_norm,
    F.linear: _linear,
    F.embedding: _embedding,
    torch.embedding: lambda _, weight, x, padding_idx=-1, *rest, **named: _embedding(
        _, x, weight, None if padding_idx < 0 else padding_idx, None, 2.0, *rest, **named
    ),
    F.embedding_bag: _unlike("an EmbeddingBag, whose padding is one row of all tables"),
    # Its backward pass asks whether any number of any client is 0.
    torch.prod: _unlike("a product of numbers"),
    torch.Tensor.prod: _unlike("a product of numbers"),
    F.dropout: _dropout(feature=False),
    F.dropout2d: _dropout(feature=True),
    torch.lstm: _lstm,
    torch.Tensor.view: _view,
}
