"""An LSTM of many clients at once: one batched matrix product for all inputs, then one a step."""

from collections.abc import Sequence

import torch

__all__ = ["stacked_lstm"]

# Of one layer in one direction: from inputs and from the state, with a bias each or without.
_WITH_BIAS, _WITHOUT = 4, 2


def stacked_lstm(
    inputs: torch.Tensor, state: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], *, bias: bool, bidirectional: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, last hidden states and last cells, as :class:`torch.nn.LSTM` has them, for K clients.

    Args:
        inputs: ``(K, T, B, features)``.
        state: Hidden states and cells, ``(K, layers · directions, B, hidden)`` each.
        weights: As ``torch.lstm`` takes them, each ``(K, *shape)``.
        bias: Whether there are biases.
        bidirectional: Whether a second pass goes backwards in time.

    Returns:
        ``(K, T, B, directions · hidden)``, and twice ``(K, layers · directions, B, hidden)``.

    Source: Hochreiter and Schmidhuber 1997; gates in torch's order: input, forget, cell, output.
    """
    each, directions = _WITH_BIAS if bias else _WITHOUT, 2 if bidirectional else 1
    hidden, cells = state
    last_hidden, last_cells, out = [], [], inputs
    for first in range(0, len(weights) // each, directions):
        outputs = []
        for number in range(first, first + directions):
            backwards = number - first == 1
            own = weights[number * each : (number + 1) * each]
            made, h, c = _pass(out.flip(1) if backwards else out, hidden[:, number], cells[:, number], own)
            outputs.append(made.flip(1) if backwards else made)
            last_hidden.append(h)
            last_cells.append(c)
        out = torch.cat(outputs, dim=-1) if bidirectional else outputs[0]
    return out, torch.stack(last_hidden, dim=1), torch.stack(last_cells, dim=1)


def _pass(
    inputs: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer in one direction."""
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
