"""The processes that share a run: the *ranks* of a ``torch.distributed`` process group, as torchrun starts them.

Rank 0 alone has the record: folder, ledger, keys of cohorts. Each rank computes the updates of its part of a cohort, and makes
and remembers its part of each row of noise; what they exchange are sums and rows. All ranks execute the same program::

    ranks = Ranks.launched()                       # one rank, if no launcher started this process
    cohort = ranks.lead(lambda: draw(...))         # rank 0 does it; all get the result
    total, found = ranks.summed(chunks, zero)      # each does its part; all get the sum, the same bits on any number of ranks
    row = ranks.gathered(make, ranges, dtype)      # each makes its part; all get the whole

An error on one rank, and a rank that ends, does not answer or makes other calls than rank 0, is a ``RankError`` on all others.
It names the rank, or nobody if that cannot be known; another rank may name rank 0, if that ended first.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_process_group_store

from hubbub._util import __version__
from hubbub._util.checks import positive
from hubbub._util.processes import end_with
from hubbub.errors import ConfigError, RankError
from hubbub.noise.sources import SecureSource, sampler

__all__ = ["TIME_LIMIT", "Ranks", "divided", "fingerprint", "has_launcher", "segments", "word"]

T = TypeVar("T")

# Seconds without an answer after which a rank counts as gone; the work between two answers is in them.
TIME_LIMIT = 1800.0
# In which a rank that lives says that an exchange failed.
_SOON = timedelta(seconds=5)
_LAUNCHED, _TORCHRUN = "RANK", "TORCHELASTIC_RUN_ID"
# How many processes SLURM or MPI started together.
_TOGETHER = "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
# Of a sum in floating point: enough for many ranks, few enough to hold.
_BLOCKS = 64


@dataclass(frozen=True)
class _Failed:
    """An error, in place of a result."""

    rank: int | None
    why: str


@dataclass(frozen=True)
class _Broken:
    """The answer of a rank that lives, on which an exchange of data failed."""

    why: str


def has_launcher() -> bool:
    """Whether torchrun, or the like of it, started this process as a rank of a group.

    Raises:
        ConfigError: It was started several times without a group.
    """
    if _LAUNCHED in os.environ:
        # Of one rank only torchrun makes a group, which it may start again; some platforms number every process.
        return os.environ.get("WORLD_SIZE") != "1" or _TORCHRUN in os.environ
    for name in _TOGETHER:
        if os.environ.get(name, "1") not in ("", "0", "1"):
            raise ConfigError(
                f"{name} = {os.environ[name]}: this program was started several times at once, and each would be a run of its "
                "own over the same people; start torchrun once on each machine (srun --ntasks-per-node=1 torchrun …)"
            )
    return False


def fingerprint(*parts: object) -> str:
    """A digest of tensors, and of other values by their words, by which ranks compare what must be equal.

    Example:
        >>> fingerprint(torch.ones(2), "sgd") == fingerprint(torch.ones(2), "sgd"), fingerprint(1, 23) == fingerprint(12, 3)
        (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            digest.update(repr((tuple(part.shape), part.dtype)).encode())
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(repr(part).encode())
        # No repr has it, and the length of a tensor's bytes follows from its shape: what is given follows from the bytes.
        digest.update(b"\0")
    return digest.hexdigest()


def word(function: object) -> str:
    """The name of a function or of a callable's class, by which ranks compare it.

    Example:
        >>> word(divided), word(torch.nn.MSELoss())
        ('hubbub.training.ranks.divided', 'torch.nn.modules.loss.MSELoss')
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def divided(count: int, parts: int) -> list[tuple[int, int]]:
    """``count`` things in order as ``parts`` ranges that differ by one in length at most.

    Example:
        >>> divided(5, 2), divided(1, 3)
        ([(0, 3), (3, 5)], [(0, 1), (1, 1), (1, 1)])
    """
    return list(pairwise(-(-count * i // parts) for i in range(parts + 1)))


def segments(dim: int, ranks: int) -> list[tuple[int, int]]:
    """The numbers of a vector that each rank has: whole segments of a row of noise, of which each is made by one rank alone.

    Example:
        >>> segments(100_000, 2)
        [(0, 65536), (65536, 100000)]
    """
    length = SecureSource.segment_length
    ranges = divided(-(-dim // length), ranks)
    return [(min(first * length, dim), min(stop * length, dim)) for first, stop in ranges]


class Ranks:
    """The ranks of a run, and this process's place among them.

    Args:
        group: A process group, which all its processes make at the same time; :meth:`launched` takes that of the launcher.
            Without one this process is the only rank, and every method only calls or returns.
        time_limit: Seconds after which a rank that does not answer counts as gone.
        shard_optimizer: Whether each rank has the state of the server's optimizer for its part of the model alone, and steps
            there (as ZeRO-1); the parts are then sent round.

    What lies on a GPU is exchanged by NCCL, if each rank has a GPU of its own, and all else between processors, by gloo.
    Integers add up to the same bits in any order; sums in floating point are added in the order of their chunks.

    Raises:
        RankError: A rank is missing, or has another version of hubbub or torch, another processor or number of threads.

    Example:
        >>> ranks = Ranks()
        >>> ranks.size, ranks.leads, ranks.lead(lambda: 7), ranks.exchange(lambda: "done")
        (1, True, 7, ['done'])
        >>> ranks.summed([lambda total: total.add_(2).numel()] * 3, torch.zeros(2, dtype=torch.int64))
        (tensor([6, 6]), [2, 2, 2])
    """

    def __init__(
        self, group: "dist.ProcessGroup | None" = None, *, time_limit: float = TIME_LIMIT, shard_optimizer: bool = False
    ) -> None:
        self._limit = timedelta(seconds=positive("time_limit", time_limit))
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self.shard_optimizer = shard_optimizer and self.size > 1
        if self.size > 1:
            self._members = dist.get_process_group_ranks(group)
            self._data = dist.new_group(self._members, self._limit, "gloo", use_local_synchronization=True)
            # Pairs, each a group of its own: a wait that was too long closes all connections of its group.
            store = _get_process_group_store(self._data)
            self._talk: dict[int, Any] = {
                rank: dist.ProcessGroupGloo(PrefixStore(f"talk {rank}", store), int(not self.leads), 2, self._limit)
                for rank in range(1, self.size)
                if self.leads or rank == self.rank
            }
            # The number, kind and place of the present exchange, with which each message begins.
            self._at = (0, "", "")
            self._lost = dict[int, RankError]()
            # Made when a tensor on a GPU is first exchanged.
            self._gpus: dist.ProcessGroup | None = None
            self.require_same("hubbub or torch", lambda: (__version__, torch.__version__))
            # By another one, a client's bits, or a row drawn again, would depend on where they are computed.
            self.require_same("processor, number of threads or library", lambda: (sampler(), torch.get_num_threads()))
            self.require_same("shard_optimizer", lambda: shard_optimizer)

    @classmethod
    def launched(cls, *, time_limit: float = TIME_LIMIT, shard_optimizer: bool = False) -> "Ranks":
        """The processes that torchrun, or the like of it, started together with this one; without any, one rank.

        Ranks of torchrun end when it does, within seconds.

        Raises:
            ConfigError: The group cannot be made from the environment, or SLURM or MPI started several processes without one.
            RankError: As for the class.
        """
        if not dist.is_initialized():
            if not has_launcher():
                return cls()
            if _TORCHRUN in os.environ:
                end_with(os.getppid())
            try:
                dist.init_process_group("gloo", timeout=timedelta(seconds=positive("time_limit", time_limit)))
            except (ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"{_LAUNCHED} = {os.environ[_LAUNCHED]!r}: a launcher seems to have started this process, and its group "
                    f"cannot be made ({_line(error)}); start it by torchrun, or unset {_LAUNCHED}"
                ) from error
        return cls(dist.group.WORLD, time_limit=time_limit, shard_optimizer=shard_optimizer)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which has the record."""
        return self.rank == 0

    def lead(self, what: Callable[[], T]) -> T:
        """Do something on rank 0, and give every rank its result.

        Raises:
            RankError: On the other ranks, if it raised on rank 0; on any, if a rank is gone.
        """
        if self.size == 1:
            return what()
        self._begin("lead", what)
        if not self.leads:
            return self._asked(None)  # type: ignore[no-any-return]
        try:
            result = what()
        except BaseException as error:
            for rank in range(1, self.size):
                # What it says in this exchange, before it hears why there is no answer.
                with suppress(RankError):
                    self._receive(rank, _SOON)
            self._tell(self._failed(error))
            raise
        self._heard(self._limit)
        self._tell(result)
        return result

    def exchange(self, what: Callable[[], T]) -> list[T]:
        """Do something on every rank, and give every rank all results, in the order of the ranks.

        Raises:
            RankError: It raised on another rank, or a rank is gone.
        """
        return self._exchange("exchange", what)

    def _exchange(self, kind: str, what: Callable[[], T]) -> list[T]:
        if self.size == 1:
            return [what()]
        self._begin(kind, what)
        mine: Any
        own: Exception | None = None
        try:
            mine = what()
        except Exception as error:  # noqa: BLE001 # whatever it is, the others must not wait for this rank
            own, mine = error, self._failed(error)
        if self.leads:
            found = [mine, *self._heard(self._limit)]
            self._tell(found)
        else:
            found = self._asked(mine)
        for result in found:
            if isinstance(result, _Failed):
                if own is not None and self.leads:
                    raise own
                raise RankError(result.why, result.rank) from own
        return found

    def require_same(self, what: str, value: Callable[[], object]) -> None:
        """Refuse ranks on which something, such as its version or its model, is another than on rank 0.

        Raises:
            RankError: One does.
        """
        values = self._exchange(what, value) if self.size > 1 else []
        for rank, other in enumerate(values):
            if other != values[0]:
                # Digests are of people's data, and would let whoever reads a log test a guess.
                shown = "" if isinstance(other, str) else f" ({other!r} and {values[0]!r})"
                raise RankError(f"rank {rank}: has another {what} than rank 0{shown}", rank)

    def summed(
        self, chunks: Sequence[Callable[[torch.Tensor], T]], zero: torch.Tensor, terms: Callable[[], object] = lambda: None
    ) -> tuple[torch.Tensor, list[T]]:
        """A sum of chunks, which the ranks divide, and what else the chunks return, in their order.

        Args:
            chunks: The same on every rank, by number and name. Each adds its terms to the tensor that it is given.
            zero: Of the shape, dtype and device of the sum.
            terms: What the chunks are computed from, such as clients by number and the model: ranks that disagree are refused,
                since one would count twice, or not as what it is. A rank that skips one of two sums with equal names and terms
                is found only by a later exchange of another kind: let terms tell sums apart, as by their round.

        Raises:
            RankError: The ranks disagree on the chunks or the terms. A chunk failed on another rank, or a rank is gone.
        """
        exact = not zero.dtype.is_floating_point
        # In floating point block by block, whichever rank made them; a rank holds the sums of its blocks.
        blocks = divided(len(chunks), max(1, len(chunks) if exact else min(len(chunks), _BLOCKS)))
        first, stop = divided(len(blocks), self.size)[self.rank]
        parts = [torch.zeros_like(zero)]

        def own() -> list[T]:
            found = []
            for begin, end in blocks[first:stop]:
                part = parts[0] if exact else torch.zeros_like(zero)
                found += [chunk(part) for chunk in chunks[begin:end]]
                if self.size == 1 and not exact:
                    parts[0] += part
                elif not exact:
                    parts.append(part)
            return found

        if self.size > 1:
            form = zero.shape, zero.dtype, zero.device.type
            self.require_same("cohort, model, data or device", lambda: fingerprint(*form, *map(word, chunks), terms()))
        found = self._exchange("sum", own)
        return self._total(parts, exact), [one for some in found for one in some]

    def _total(self, parts: Sequence[torch.Tensor], exact: bool) -> torch.Tensor:
        """The sum of the parts of all ranks: those of rank 0 in their order, those of rank 1, and so on."""
        if self.size == 1:
            return parts[0]
        group, total = self._way(parts[0])
        if exact:
            self._moving([partial(dist.all_reduce, total, group=group, async_op=True)])
        else:
            for rank in range(self.size):
                if rank == self.rank:
                    for part in parts[1:]:
                        total += part.to(total.device)
                self._moving([partial(dist.broadcast, total, self._members[rank], group=group, async_op=True)])
        return total.to(parts[0].device)

    def _way(self, tensor: torch.Tensor) -> "tuple[dist.ProcessGroup, torch.Tensor]":
        """The group by which a tensor is exchanged, and the tensor where that group needs it."""
        if tensor.device.type != "cuda" or not dist.is_nccl_available():
            return self._data, tensor.cpu()
        if self._gpus is None:
            found = self.exchange(lambda: str(torch.cuda.get_device_properties(tensor.device).uuid))
            # NCCL's own word for ranks that share a GPU.
            own = len(set(found)) == self.size or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
            self._gpus = self._by_nccl() if own else self._data
        return self._gpus, tensor if self._gpus is not self._data else tensor.cpu()

    def _by_nccl(self) -> "dist.ProcessGroup":
        before = os.environ.get(_BLOCKING)
        # A wait that is too long ends with an error, in place of the process.
        os.environ[_BLOCKING] = "1"
        try:
            made: dist.ProcessGroup = dist.new_group(self._members, self._limit, "nccl", use_local_synchronization=True)
        finally:
            os.environ.pop(_BLOCKING)
            if before is not None:
                os.environ[_BLOCKING] = before
        return made

    def gathered(
        self, make: Callable[[], torch.Tensor | None], ranges: Sequence[tuple[int, int]], dtype: torch.dtype
    ) -> torch.Tensor:
        """A vector of which each rank makes the numbers of one range.

        Args:
            make: Makes this rank's; ``None`` if its range is empty.
            ranges: Of all ranks.
            dtype: Of the vector.

        Raises:
            RankError: A rank is gone, failed, or made a part of another length or dtype.
        """
        made: list[torch.Tensor | None] = []

        def part() -> tuple[int, torch.dtype] | None:
            made.append(make())
            return None if made[0] is None else (len(made[0]), made[0].dtype)

        for rank, (found, (first, stop)) in enumerate(zip(self._exchange("parts", part), ranges, strict=True)):
            if found != ((stop - first, dtype) if stop > first else None):
                raise RankError(f"rank {rank}: its part is {found}, must be ({stop - first}, {dtype})", rank)
        if self.size == 1 and made[0] is not None:
            return made[0]
        whole = torch.empty(ranges[-1][1], dtype=dtype, device="cpu")
        first, stop = ranges[self.rank]
        if made[0] is not None:
            whole[first:stop] = made[0]
        self._complete(whole, ranges)
        return whole

    def complete(self, vector: torch.Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        """Overwrite each range of a vector by that of the rank whose it is.

        Raises:
            RankError: A rank is gone, or has another vector, ranges or kind of device.
        """
        if self.size > 1:
            form = tuple(vector.shape), vector.dtype, vector.device.type
            self.require_same("vector, ranges or device", lambda: (*form, list(ranges)))
            self._complete(vector, ranges)

    def _complete(self, vector: torch.Tensor, ranges: Sequence[tuple[int, int]]) -> None:
        group, here = self._way(vector.detach())
        self._moving([
            partial(dist.broadcast, here[first:stop], self._members[rank], group=group, async_op=True)
            for rank, (first, stop) in enumerate(ranges)
            if stop > first
        ])  # fmt: skip
        if here.device != vector.device:
            with torch.no_grad():
                vector.copy_(here)

    def share(self, vector: torch.Tensor) -> None:
        """Overwrite a vector on every rank by that of rank 0; as :meth:`complete`, with one range."""
        self.complete(vector, [(0, len(vector)), *[(0, 0)] * (self.size - 1)])

    # How they talk: each with rank 0, so that whoever does not answer has a number; and in each exchange, so that whoever makes
    # other calls is found before it adds anything up.

    def _begin(self, kind: str, what: Callable[[], object]) -> None:
        """Count an exchange: of a kind, which is the same on all ranks, and at a place in the program, which is shown."""
        self._at = (self._at[0] + 1, kind, word(what).removesuffix(".<locals>.<lambda>"))

    def _failed(self, error: BaseException) -> _Failed:
        if isinstance(error, RankError):
            return _Failed(error.rank, str(error))
        return _Failed(self.rank, f"rank {self.rank}: {_line(error)}")

    def _moving(self, moves: Sequence[Callable[[], Any]]) -> None:
        """Move data, all at once, as they go different ways; if that fails, find out who is gone."""
        try:
            for work in [move() for move in moves]:
                work.wait()
        except RuntimeError as error:
            if self.leads:
                self._heard(_SOON, _line(error))
            self._asked(_Broken(_line(error)))
            raise RankError(f"rank 0: answers, although data were lost on rank {self.rank} ({_line(error)})", 0) from error

    def _asked(self, mine: object) -> Any:
        """Say something to rank 0; returns its answer."""
        self._send_packed(_packed((self._at, mine)), 0, self._longer)
        answer = self._receive(0, self._longer)
        if isinstance(answer, _Failed):
            raise RankError(answer.why, answer.rank)
        return answer

    def _heard(self, limit: timedelta, broken: str = "") -> list[Any]:
        """On rank 0, what each other rank says in this exchange; or after its data were lost, who is gone.

        Raises:
            RankError: On all ranks.
        """
        found, gone = list[Any](), list[RankError]()
        for rank in range(1, self.size):
            try:
                found.append(self._receive(rank, min(limit, _SOON) if gone else limit))
            except RankError as error:
                gone.append(error)
            else:
                broken = broken or (found[-1].why if isinstance(found[-1], _Broken) else "")
        if not gone and not broken:
            return found
        # Without data one waits for another, and then neither answers; but one that only waits has not ended.
        ended = [error for error in gone if not _timed_out(error.__cause__)]
        certain = (ended or gone) if broken else gone[:1]
        if ended or len(certain) == 1:
            fault = certain[0]
        elif gone:
            silent = ", ".join(str(error.rank) for error in gone)
            fault = RankError(f"ranks {silent} do not answer: which of them stopped, and which wait for it, cannot be known")
        else:
            fault = RankError(f"data were lost, and all ranks answer ({broken}): which one held them up cannot be known")
        self._tell(self._failed(fault))
        raise fault

    def _tell(self, result: object) -> None:
        """Send something to all other ranks; who is gone is found in the next exchange."""
        content = _packed((self._at, result))
        for rank in range(1, self.size):
            with suppress(RankError):
                self._send_packed(content, rank, _SOON if self._lost else self._limit)

    @property
    def _longer(self) -> timedelta:
        """How long the others wait for rank 0, which may itself wait for one that is silent, and then names it."""
        return 2 * self._limit + 2 * _SOON

    def _send_packed(self, content: torch.Tensor, rank: int, limit: timedelta) -> None:
        for part in (torch.tensor([len(content)], device="cpu"), content):
            self._move(part, rank, limit, sends=True)

    def _receive(self, rank: int, limit: timedelta) -> Any:
        """What a rank says in this exchange."""
        length = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._move(length, rank, limit)
        content = torch.empty(int(length), dtype=torch.uint8, device="cpu")
        self._move(content, rank, limit)
        at, said = pickle.loads(content.numpy().tobytes())  # noqa: S301 # of a rank, which is this run's own process
        if at[:2] != self._at[:2] and not isinstance(said, _Failed | _Broken):
            raise RankError(
                f"rank {rank}: is out of step: its exchange {at[0]} is {at[1]!r} of {at[2]}, and exchange {self._at[0]} of "
                f"rank {self.rank} is {self._at[1]!r} of {self._at[2]}; all ranks must make the same calls in the same order",
                rank,
            )
        return said

    def _move(self, tensor: torch.Tensor, rank: int, limit: timedelta, *, sends: bool = False) -> None:
        """Send a tensor to a rank, or receive it."""
        if rank in self._lost:
            raise self._lost[rank]
        pair = self._talk[rank or self.rank]
        try:
            # Of a pair, rank 0 is 0 and the other one 1.
            (pair.send if sends else pair.recv)([tensor], int(self.leads), 0).wait(limit)
        except RuntimeError as error:
            why = f"did not answer within {limit.total_seconds():g} seconds" if _timed_out(error) else "ended"
            self._lost[rank] = RankError(f"rank {rank}: {why}; its own output may say why", rank, True)
            raise self._lost[rank] from error


def _timed_out(error: BaseException | None) -> bool:
    return "Timed out" in str(error)


def _packed(value: object) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
