"""Clients behind the nodes of a Flower grid, for hubbub's own loop: no reply can stop a round or exceed the clip norm."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import nn

from hubbub._util.checks import integer, positive
from hubbub.errors import ConfigError
from hubbub.flower.arrays import Layout, difference, native
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import APP_RAISED, CLIP_NORM, RoundMessages, addressed, single_arrays, stated_numbers
from hubbub.flower.summing import TRAIN_LOSS, Streaming, Summing, train_loss
from hubbub.training.aggregate import Adversary, Cohort, LatticeSum, PlainSum, Population, adversarial_update, statistics
from hubbub.training.clipping import CountSplit, bounded
from hubbub.training.simulation.local import flat_parameters

ROUND_INDEX = "round-index"


class GridPopulation(Population):
    """Clients behind the nodes of a Flower grid, for :func:`hubbub.training.train`.

    In a round each client of the cohort gets one train message: the model's trainable parameters by name, and the settings
    ``server-round`` (from 1), ``round-index`` (from 0) and ``dpfedavg_clip_norm`` (if the run has one). It replies with the
    trained parameters under the same names. Its first reply counts. A reply that is missing, late, malformed or not finite
    counts as a zero update, and never stops the round.

    Args:
        grid: Any grid.
        clients: From each client's id to its node; or the nodes of clients 0, 1, … in order.
        lattice: Whether clipped updates are summed as integers, as a release requires; ``False`` sums in floating point, in
            the order of the cohort, for simulations only.
        timeout: Seconds that a round waits for replies.

    Raises:
        ConfigError: There is no client, or two have the same node.

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
        """Let an adversary choose a client's update; the mods of its app and the server stay as they are.

        The client's reply is the model that it received plus the update, in the model's dtype; without an update, an error.

        Args:
            client: Its id.
            adversary: From the model as the client received it and the round to the update before any clip, ``(dim,)``;
                ``None`` gives the client back to its app.

        Raises:
            ConfigError: There is no such client, or the grid is no LocalGrid.
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
                raise ConfigError("inject: this population has not been asked to train a model")
            (config,) = message.content.config_records.values()
            # The model that the client received, not the server's.
            model = deepcopy(self._model)
            load(model, single_arrays(message.content))
            update = adversarial_update(adversary, model, integer(ROUND_INDEX, config[ROUND_INDEX], at_least=0))
            if update is None:
                return Message(Error(APP_RAISED, "the adversary does not answer"), reply_to=message)
            before = flat_parameters(model)
            after = (before.to(torch.float64) + update.cpu()).to(before.dtype)
            return Message(trained(model, after, math.nan), reply_to=message)

        self._grid.craft(self._nodes[str(client)], answer)

    def collect(
        self, cohort: Cohort, model: nn.Module, clip_norm: float | None, round_index: int, split: CountSplit | None = None
    ) -> LatticeSum | PlainSum:
        """The sum of the cohort's updates, clipped unless ``clip_norm`` is ``None``, ``(dim,)``.

        With a ``split`` each client's indicator is one more coordinate, ``(dim + 1,)``.
        """
        messages, replies = self.ask(cohort, model, clip_norm, round_index)
        layout, arrays = layout_of(model), _arrays(model)
        if self._lattice and clip_norm is not None:
            whole, _, _ = Summing(layout, clip_norm, split).of(messages, replies, arrays)
            messages.log_faults(f"round {round_index + 1}")
            return whole
        before, total = layout.views(arrays), torch.zeros(layout.dim + (split is not None), dtype=torch.float64, device="cpu")
        clipped, losses, answers = 0, list[float](), dict(messages.contents(replies))
        # In the order of the cohort: in floating point another order gives another sum.
        for client in filter(answers.__contains__, messages.clients):
            try:
                update = difference(layout.views(single_arrays(answers[client])), before)
                if not bool(torch.isfinite(update).all()):
                    raise ValueError("its update is not finite")
                part, was_clipped = bounded(update, clip_norm, None, split)
                total += part
            except Exception as error:  # noqa: BLE001 # whatever one client sends, the round must not depend on it
                messages.refuse(client, error)
                continue
            losses.append(train_loss(answers[client]))
            clipped += was_clipped
        messages.log_faults(f"round {round_index + 1}")
        return PlainSum(total, statistics(len(messages.clients), clipped, losses))

    def ask(
        self,
        cohort: Cohort,
        model: nn.Module,
        clip_norm: float | None,
        round_index: int,
        further: Mapping[str, float | str | bytes] | None = None,
    ) -> tuple[RoundMessages, Iterable[Message]]:
        """Send a model to the cohort for training: the messages, and the replies as they arrive.

        Args:
            cohort: Clients' ids.
            model: The global model.
            clip_norm: That clients get.
            round_index: From 0.
            further: More settings for the clients.
        """
        clipping = {} if clip_norm is None else {CLIP_NORM: float(clip_norm)}
        settings = {"server-round": round_index + 1, ROUND_INDEX: round_index, **clipping, **(further or {})}
        return self._sent(cohort, model, settings, MessageType.TRAIN)

    def measure(self, cohort: Cohort, model: nn.Module) -> list[dict[str, float]]:
        """The numbers that clients measure of the model, by name; one entry for each client that answers."""
        messages, replies = self._sent(cohort, model, {}, MessageType.EVALUATE)
        answers = stated_numbers(messages, replies)
        messages.log_faults("evaluation")
        return answers

    def _sent(
        self, cohort: Cohort, model: nn.Module, settings: Mapping[str, float | str | bytes], message_type: str
    ) -> tuple[RoundMessages, Iterable[Message]]:
        self._model = model
        content = RecordDict({"arrays": _arrays(model), "config": ConfigRecord({**settings})})
        nodes = {str(client): self._nodes[str(client)] for client in cohort}
        messages = addressed(content, message_type, nodes, self._timeout)
        replies = Streaming(self._grid).send_and_receive(messages.messages, timeout=self._timeout) if cohort else []
        return messages, replies


def load(model: nn.Module, arrays: ArrayRecord) -> None:
    """Copy the parameters in a message into a client's model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        for parameter, flat in zip(parameters, layout_of(model).views(arrays), strict=True):
            parameter.copy_(torch.from_numpy(native(flat)).view(parameter.shape))


def trained(model: nn.Module, vector: torch.Tensor, loss: float) -> RecordDict:
    """A client's reply: its trained parameters, given as one vector ``(dim,)``, under the model's names, and its loss."""
    layout = layout_of(model)
    arrays = layout.record(part.numpy() for part in vector.detach().cpu().split(layout.sizes))
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({TRAIN_LOSS: float(loss)})})


def layout_of(model: nn.Module) -> Layout:
    """The layout of a model's trainable parameters."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    names, shapes = tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named)
    dtypes = tuple(str(p.dtype).removeprefix("torch.") for _, p in named)
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype not in ("float16", "float32", "float64"):
            raise ConfigError(f"model: parameter {name!r} is of {dtype}, which NumPy arrays do not hold; use float32")
    return Layout(names, shapes, dtypes, names)


def _arrays(model: nn.Module) -> ArrayRecord:
    parameters = (p.detach().cpu().reshape(-1).numpy() for p in model.parameters() if p.requires_grad)
    return layout_of(model).record(parameters)
