"""The clients of an in-process run on a Flower grid: whatever they send, the round is finished and the clip norm holds."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import nn

from hubbub._util.checks import integer, positive
from hubbub.errors import ConfigError
from hubbub.flower.arrays import Change, Layout
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import CLIP_NORM, Asked, addressed, records_of, single_arrays, stated_numbers
from hubbub.flower.streaming import Streaming
from hubbub.noise.lattice import Lattice
from hubbub.training.aggregate import Adversary, LatticeSum, PlainSum, Population, adversarial_update, statistics
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.simulation.local import flat_parameters

__all__ = ["ROUND_INDEX", "TRAIN_LOSS", "GridPopulation", "load", "trained"]

ROUND_INDEX = "round-index"
TRAIN_LOSS = "train_loss"
# Flower's code of an app that failed.
_APP_RAISED = 2


class GridPopulation(Population):
    """Clients behind the nodes of a Flower grid, for :func:`hubbub.training.train`.

    In a round each client of the cohort gets one train message: the model's trainable parameters by name, and the settings
    ``server-round`` (from 1), ``round-index`` (from 0) and ``dpfedavg_clip_norm`` (where the run has one). It answers with the
    trained parameters under the same names. The first answer to this message counts; what is missing, late, doubled, malformed
    or not finite counts as a zero update, and never stops the round.

    Args:
        grid: Any grid.
        clients: The node of each client by the client's id; or the nodes of clients 0, 1, … in order.
        lattice: Whether clipped updates are summed as integers, as a release needs; ``False`` sums in floating point, in the
            order of the cohort, for simulations only.
        timeout: Seconds that a round waits for replies.

    Raises:
        ConfigError: No client, or two on one node.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> from hubbub.flower.local_grid import LocalGrid
        >>> grid = LocalGrid(ClientApp(), num_nodes=3)
        >>> GridPopulation(grid, grid.get_node_ids()).clients
        [0, 1, 2]
    """

    def __init__(
        self, grid: Grid, clients: Mapping[Hashable, int] | Sequence[int], *, lattice: bool = True, timeout: float = 600.0
    ) -> None:
        nodes = dict(clients) if isinstance(clients, Mapping) else dict(enumerate(clients))
        self._nodes = {str(client): integer("clients", node, at_least=0) for client, node in nodes.items()}
        if not nodes:
            raise ConfigError("clients: the list is empty")
        if len(set(self._nodes.values())) < len(nodes) or len(self._nodes) < len(nodes):
            raise ConfigError("clients: two have the same node or the same name; each needs one of its own")
        self._grid = grid
        self._clients = list(nodes)
        self._lattice = lattice
        self._timeout = positive("timeout", timeout)
        self._model: nn.Module | None = None

    @property
    def clients(self) -> Sequence[Hashable]:
        """Every client's id, in the order given."""
        return self._clients

    takes_split = True

    def inject(self, client: Hashable, adversary: Adversary | None) -> None:
        """Let an adversary choose what a client sends; the mods of its app and the server stay as they are.

        The client's reply is the model that it was sent plus the update, in the model's own dtype; one without an
        answer replies with an error.

        Args:
            client: Its id.
            adversary: From the model as the client got it and the round to the update before any clip, ``(dim,)``; ``None``
                gives the client back to its app.

        Raises:
            ConfigError: There is no such client, or it runs where nobody here chooses what it does.
        """
        if str(client) not in self._nodes:
            raise ConfigError(f"client = {client!r}: is not one of this population's {len(self._clients)} clients")
        if not isinstance(self._grid, LocalGrid):
            raise ConfigError(f"grid: the clients of a {type(self._grid).__name__} run elsewhere; take a LocalGrid")

        if adversary is None:
            self._grid.craft(self._nodes[str(client)], None)
            return

        def answer(message: Message, _: Context) -> Message:
            if self._model is None:
                raise ConfigError("inject: nobody has asked this population to train a model")
            (told,) = message.content.config_records.values()
            # What the client got, not what the server has.
            model = deepcopy(self._model)
            load(model, single_arrays(message.content))
            update = adversarial_update(adversary, model, integer(ROUND_INDEX, told[ROUND_INDEX], at_least=0))
            if update is None:
                return Message(Error(_APP_RAISED, "the adversary does not answer"), reply_to=message)
            before = flat_parameters(model)
            after = (before.to(torch.float64) + update.cpu()).to(before.dtype)
            return Message(trained(model, after, math.nan), reply_to=message)

        self._grid.craft(self._nodes[str(client)], answer)

    def collect(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        split: CountSplit | None = None,
    ) -> LatticeSum | PlainSum:
        """The sum of the cohort's updates, clipped unless ``clip_norm`` is ``None``, ``(dim,)``.

        With a ``split`` each client's indicator is one more coordinate, ``(dim + 1,)``.
        """
        layout, change = layout_of(model), Change([numbers.numpy() for numbers in _numbers(model)])
        asked, replies = self.ask(cohort, model, clip_norm, round_index)
        lattice = None
        if self._lattice and clip_norm is not None:
            lattice = Lattice(split.joint_norm(clip_norm) if split else clip_norm)
        # Of a lattice whole numbers, which float64 adds exactly.
        total = torch.zeros(layout.dim + (split is not None), dtype=torch.float64)
        buffer, clipped, losses = Lattice.buffer(total), 0, []
        for client, content in _in_order(asked, replies) if lattice is None else asked.contents(replies):
            try:
                change, loss = change.to(layout.views(single_arrays(content))), _loss(content)
                was_clipped: bool | None = None
                if lattice is None or split:
                    part, was_clipped = bounded(change.finite(), clip_norm, None, split)
                    if lattice is None:
                        total += part
                    else:
                        lattice.add(part, total, buffer)
                elif (was_clipped := lattice.add(change, total, buffer)) is None:
                    raise ValueError("its update is not finite")
            except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not depend on it
                asked.refuse(client, error)
                continue
            losses.append(loss)
            clipped += bool(was_clipped)
        asked.log_faults(f"round {round_index + 1}")
        private = statistics(len(asked.clients), clipped, losses)
        return LatticeSum(total.to(torch.int64), lattice, private) if lattice else PlainSum(total, private)

    def ask(
        self,
        cohort: Sequence[Hashable],
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        further: Mapping[str, float | str | bytes] | None = None,
    ) -> tuple[Asked, Iterable[Message]]:
        """Have the cohort train a model: who was asked, and what came.

        Args:
            cohort: Clients' ids.
            model: The global model.
            clip_norm: The one that clients get.
            round_index: From 0.
            further: Settings that clients get as well.
        """
        told: dict[str, float | str | bytes] = {"server-round": round_index + 1, ROUND_INDEX: round_index, **(further or {})}
        if clip_norm is not None:
            told[CLIP_NORM] = float(clip_norm)
        return self._asked(cohort, model, told, MessageType.TRAIN)

    def measure(self, cohort: Sequence[Hashable], model: nn.Module) -> list[dict[str, float]]:
        """What the clients measure of the model, by name, as far as they answer."""
        asked, replies = self._asked(cohort, model, {}, MessageType.EVALUATE)
        answers = stated_numbers(asked, replies)
        asked.log_faults("evaluation")
        return answers

    def _asked(
        self, cohort: Sequence[Hashable], model: nn.Module, told: Mapping[str, float | str | bytes], message_type: str
    ) -> tuple[Asked, Iterable[Message]]:
        """Send a model to the cohort: who was asked, and what came."""
        self._model = model
        arrays = layout_of(model).record(numbers.numpy() for numbers in _numbers(model))
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({**told})})
        nodes = {str(client): self._nodes[str(client)] for client in cohort}
        asked = addressed(content, message_type, nodes, self._timeout)
        return asked, Streaming(self._grid).send_and_receive(asked.messages, timeout=self._timeout) if cohort else []


def _in_order(asked: Asked, replies: Iterable[Message]) -> Iterator[tuple[str, RecordDict]]:
    """What came in the order of the cohort, not of the answers: in floating point that is another sum."""
    answers = dict(asked.contents(replies))
    return ((client, answers[client]) for client in asked.clients if client in answers)


def load(model: nn.Module, arrays: ArrayRecord) -> None:
    """Put the parameters that a message brought into a client's model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, flat in zip(parameters, layout_of(model).tensors(arrays), strict=True):
            parameter.copy_(flat.view(parameter.shape))


def trained(model: nn.Module, vector: torch.Tensor, loss: float) -> RecordDict:
    """A client's answer: its trained parameters, given as one vector ``(dim,)``, under the model's names, and its loss."""
    layout = layout_of(model)
    arrays = layout.record(part.numpy() for part in vector.detach().cpu().split(layout.sizes))
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({TRAIN_LOSS: float(loss)})})


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model's trainable parameters.

    Raises:
        ConfigError: One is of a dtype that NumPy arrays do not hold.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    names, shapes = tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named)
    dtypes = tuple(str(p.dtype).removeprefix("torch.") for _, p in named)
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype not in ("float16", "float32", "float64"):
            raise ConfigError(f"model: parameter {name!r} is of {dtype}, which NumPy arrays do not hold; use float32")
    return Layout(names, shapes, dtypes, names)


def _numbers(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().cpu().reshape(-1) for p in model.parameters() if p.requires_grad]


def _loss(content: RecordDict) -> float:
    """The training loss that a client states; NaN where it states none."""
    for record in records_of(content, MetricRecord):
        value = record.get(TRAIN_LOSS)
        if isinstance(value, int | float):
            return float(value)
    return math.nan
