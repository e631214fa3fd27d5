"""The models that come along: their sizes by hand, what they may see, and that they can be trained with a guarantee."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub.models import CharLstm, CharTransformer, CifarCnn, Cnn, Mlp
from hubbub.training.simulation.functional import FlatModel

TEXT = (CharLstm, CharTransformer)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def made(model: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model((12,) if model in TEXT else (3, 32, 32), 7)


def batch(model: type[nn.Module], examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    if model in TEXT:
        characters = torch.randint(0, 7, (examples, 13), generator=generator)
        return characters[:, :-1], characters[:, 1:]
    return torch.randn(examples, 3, 32, 32, generator=generator), torch.randint(0, 7, (examples,), generator=generator)


def test_the_sizes_are_those_of_the_networks_by_hand() -> None:
    assert size(Cnn((1, 28, 28), 10)) == 21_840
    # Papernot et al. 2021, table 2: 3 × 3 convolutions, then 128 features on each of 4 × 4 places.
    pairs = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    convolutions = sum(9 * before * after + after for before, after in pairs)
    assert size(CifarCnn((3, 32, 32), 10)) == convolutions + (2048 + 1) * 128 + (128 + 1) * 10 == 550_570
    for hidden, parameters in ((128, 211_657), (256, 815_945)):
        # An LSTM has four gates, each with weights for its input and its state, and in PyTorch with two biases.
        lstm = 4 * hidden * (8 + hidden + 2) + 4 * hidden * (hidden + hidden + 2)
        assert size(CharLstm((80,), 65, hidden)) == 65 * 8 + lstm + (hidden + 1) * 65 == parameters
    width, tables = 128, (65 + 80) * 128
    layer = 2 * 2 * width + (width + 1) * 3 * width + (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width
    assert size(CharTransformer((80,), 65)) == tables + 2 * layer + 2 * width + (width + 1) * 65 == 423_745


@pytest.mark.parametrize("model", TEXT)
def test_no_character_is_told_what_comes_after_it(model: type[nn.Module]) -> None:
    module = made(model)
    characters, _ = batch(model, 3)
    others = characters.clone()
    others[:, 8:] = (others[:, 8:] + 1) % 7
    with torch.no_grad():
        one, other = module(characters), module(others)
    torch.testing.assert_close(one[:, :, :8], other[:, :, :8])
    assert ((one[:, :, 8:] - other[:, :, 8:]).abs().amax(dim=1) > 1e-4).all()


@pytest.mark.parametrize("model", [*TEXT, CifarCnn, Mlp])
def test_a_model_can_be_trained_with_a_guarantee(model: type[nn.Module]) -> None:
    module = made(model)
    assert FlatModel(module).dim == size(module)
    assert not list(module.buffers())
    inputs, targets = batch(model, 4)
    losses, optimizer = [], torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(inputs), targets)
        loss.backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
