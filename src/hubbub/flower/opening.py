"""The server's side of opening sums on a grid: who holds the key, what noise holders add, and what a sum says.

A holder that is silent or lies is named, and another one asked in its place as long as there are any.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid
from safetensors.numpy import save

from hubbub import strict_json
from hubbub._checks import Array, positive
from hubbub.errors import SumNotOpenedError
from hubbub.flower.holder_messages import (
    ARRAYS,
    CLIP_NORM,
    HELLO,
    NOISE,
    OPEN,
    PROMISE,
    QUERY,
    RECORD,
    ROUND,
    Held,
    opened,
    request_records,
    said,
)
from hubbub.flower.messages import AGREEMENT, addressed
from hubbub.secagg.aggregator import Aggregator
from hubbub.secagg.key_holder import Opened, combined
from hubbub.secagg.protocol import Agreement
from hubbub.secagg.threshold import ThresholdKey

__all__ = ["GridHolders"]

# How long all nodes, most of which hold nothing, are waited for.
_HELLO_PATIENCE = 60.0
# Of Flower: a node that holds something and refuses replies with this code; one whose app holds nothing with another.
_FAILED_PRECONDITION = 6
_LOG = logging.getLogger("flwr")


class GridHolders:
    """The holders of the key, behind the nodes of a grid.

    Args:
        grid: Gives the grid whenever holders are asked.
        agreement: What was agreed.
        public: The key that is shared out; ``None`` where one owner has it whole.
        promised: Where the holders add noise: the record of the run's promise, and its strategy's arrays.
        timeout: Seconds that holders are waited for, each time.

    Raises:
        ValueError: The agreement is on another key, or holders would add noise that nobody promised.
    """

    def __init__(
        self,
        grid: Callable[[], Grid],
        agreement: Agreement,
        public: ThresholdKey | None,
        promised: tuple[Mapping[str, object], Mapping[str, Array]] | None,
        timeout: float,
    ) -> None:
        if public is not None and public.public_key != agreement.public_key:
            raise ValueError(f"public: is the key {public.public_key.key_id!r}, the agreement is on another")
        if (promised is None) != (agreement.noising_holders == 0):
            raise ValueError("promised: goes with holders that add noise, and with no others")
        self._grid, self._agreement, self._public = grid, agreement, public
        self._timeout = positive("timeout", timeout)
        self._hello: dict[str, bytes] = {}
        if promised is not None:
            record, arrays = promised
            contiguous = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
            self._hello = {PROMISE: strict_json.canonical({**record, "kind": "promise"}), ARRAYS: save(contiguous)}
        self._nodes: dict[int, list[int]] = {}

    def find(self) -> Mapping[int, tuple[int, ...]]:
        """The nodes that say that they hold each share, by its number, ascending; all that are connected are asked."""
        nodes = {str(int(node)): int(node) for node in self._grid().get_node_ids()}
        key_id = self._agreement.public_key.key_id if self._public is None else self._public.key_id
        found: dict[int, list[int]] = {}
        for node, content in self._ask(nodes, HELLO, {**self._hello}, {}):
            try:
                held = Held.of(content)
            except (TypeError, ValueError) as error:
                _LOG.warning("node %s: says nothing that can be read of what it holds: %s", node, error)
                continue
            if held.holder and held.key_id == key_id and held.holder <= (self._public.holders if self._public else 1):
                found.setdefault(held.holder, []).append(int(node))
        self._nodes = {number: sorted(found[number]) for number in sorted(found)}
        return {number: tuple(some) for number, some in self._nodes.items()}

    def add_noise(self, aggregator: Aggregator, clip_norm: float) -> None:
        """Add the noise of every holder to a sum.

        Args:
            aggregator: The sum.
            clip_norm: Of its lattice.

        Raises:
            SumNotOpenedError: That of a holder is missing, or is none; who it is stands in it.
        """
        self._find_where_missing(self._agreement.noising_holders)
        numbers = range(1, self._agreement.noising_holders + 1)
        # Of two that claim one share nobody can tell whose noise it is.
        nodes = {str(n): self._nodes[n][0] for n in numbers if len(self._nodes.get(n, ())) == 1}
        told: dict[str, int | float] = {ROUND: aggregator.round_index, CLIP_NORM: float(clip_norm)}
        missing = set(numbers)
        for number, content in self._ask(nodes, NOISE, {**told}, {}):
            name = f"holder {number}"
            try:
                aggregator.add_noise(name, said(content).get("noise"))
                missing.discard(int(number))
            except (TypeError, ValueError) as error:
                _LOG.warning("%s: its noise is refused: %s", name, error)
        if missing:
            names = tuple(f"holder {number}" for number in sorted(missing))
            self._nodes = {}
            raise SumNotOpenedError(
                f"round {aggregator.round_index + 1}: the noise of {', '.join(names)} is missing, or two nodes claim the "
                "same share; each sum takes that of every holder",
                names,
            )

    def open(self, aggregator: Aggregator) -> npt.NDArray[np.int64]:
        """What a sum says, ``(size,)`` whole steps, from as many holders as it takes.

        Raises:
            SumNotOpenedError: Too few contributions; too few holders that answer truly, with the names of the others; or what
                they open is no sum of the contributions.
        """
        request, where = aggregator.request(), f"round {aggregator.round_index + 1}"
        needed = self._public.threshold if self._public else 1
        self._find_where_missing(needed)
        waiting = self._claims(where)
        answers: dict[int, Opened] = {}
        silent, liars = list[str](), list[str]()
        while True:
            batch = _next(waiting, needed - len(answers), set(answers))
            if not batch:
                self._nodes = {}
                what = "".join(f"; {what}: {', '.join(who)}" for what, who in (("silent", silent), ("false", liars)) if who)
                raise SumNotOpenedError(
                    f"{where}: {len(answers)} of {needed} holders that it takes opened the sum{what}", (*silent, *liars)
                )
            waiting = [one for one in waiting if one not in batch]
            came = self._opened(batch, aggregator, request_records(request))
            answers.update(came)
            silent += [f"holder {number}" for number, _ in batch if number not in came]
            if len(answers) < needed:
                continue
            try:
                steps, _ = combined(aggregator, self._public, answers.values())
            except SumNotOpenedError as error:
                false = [number for number in answers if f"holder {number}" in error.who]
                if not false:
                    raise
                liars += [f"holder {number}" for number in false]
                answers = {number: answer for number, answer in answers.items() if number not in false}
                continue
            for who, what in ((silent, "did not answer"), (liars, "answered falsely")):
                if who:
                    _LOG.warning("%s: opened without %s, who %s", where, ", ".join(who), what)
            # Whoever did not help is asked again when others are missing.
            self._nodes = {
                number: nodes for number, nodes in self._nodes.items() if f"holder {number}" not in {*silent, *liars}
            }
            return steps

    def _claims(self, where: str) -> list[tuple[int, int]]:
        """Each share and a node that says that it holds it.

        Raises:
            SumNotOpenedError: Two nodes claim the whole key; nothing proves what its owner says.
        """
        claims = [(number, node) for number, nodes in self._nodes.items() for node in nodes]
        if self._public is None and len(claims) > 1:
            names = tuple(f"node {node}" for _, node in claims)
            self._nodes = {}
            raise SumNotOpenedError(f"{where}: {' and '.join(names)} claim the whole key, which has one owner", names)
        return claims

    def _opened(
        self, batch: Iterable[tuple[int, int]], aggregator: Aggregator, records: Mapping[str, ConfigRecord]
    ) -> dict[int, Opened]:
        """The answers of some holders that can be read."""
        nodes = {str(number): node for number, node in batch}
        found: dict[int, Opened] = {}
        for number, content in self._ask(nodes, OPEN, {ROUND: aggregator.round_index}, records):
            try:
                found[int(number)] = opened(content, int(number), aggregator, self._public)
            except (TypeError, ValueError) as error:
                _LOG.warning("holder %s: its answer is refused: %s", number, error)
        return found

    def _find_where_missing(self, needed: int) -> None:
        """Ask who is there, where fewer holders are known than are needed."""
        if len(self._nodes) < needed:
            self.find()

    def _ask(
        self,
        nodes: Mapping[str, int],
        action: str,
        told: Mapping[str, int | float | bytes],
        records: Mapping[str, ConfigRecord],
    ) -> list[tuple[str, RecordDict]]:
        """The answers of some nodes; what went wrong is logged."""
        if not nodes:
            return []
        agreed = strict_json.canonical(self._agreement.record())
        first = ConfigRecord({"action": action, AGREEMENT: agreed, **told})
        patience = min(self._timeout, _HELLO_PATIENCE) if action == HELLO else self._timeout
        asked = addressed(RecordDict({RECORD: first, **records}), QUERY, nodes, patience)
        answers = list(asked.contents(self._grid().send_and_receive(asked.messages, timeout=patience)))
        for fault in asked.faults:
            # That a client's app holds nothing is as it should be.
            usual = action == HELLO and f"(error {_FAILED_PRECONDITION})" not in fault
            _LOG.log(logging.DEBUG if usual else logging.WARNING, "secagg, %s: %s", action, fault)
        return answers


def _next(waiting: Iterable[tuple[int, int]], count: int, answered: set[int]) -> list[tuple[int, int]]:
    """The next holders to ask, each share once."""
    batch: dict[int, int] = {}
    for number, node in waiting:
        if len(batch) < count and number not in batch and number not in answered:
            batch[number] = node
    return list(batch.items())
