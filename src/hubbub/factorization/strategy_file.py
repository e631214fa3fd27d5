"""Strategy files: numbers and arrays as safetensors, with their origin.

Arrays are float64, ``strategy.<field>`` and ``workload.learning_rates``; all else is one strict JSON object, the entry
``hubbub`` of the file's metadata. Nothing that a file names is imported, and nothing that it states is trusted: the constructor
checks the strategy, which computes its own sensitivity; none is stored. The stated error and bound are unverified claims.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from hubbub._util import __version__, files, strict_json
from hubbub._util.checks import Array, integer, non_negative, one_of, shown, table
from hubbub.errors import DataError, HubbubError
from hubbub.factorization import Optimized
from hubbub.mechanism.participation import participation_of, participation_record
from hubbub.mechanism.strategies import Strategy, from_parts, strategy_arrays, strategy_numbers
from hubbub.mechanism.workloads import Workload

__all__ = ["SUFFIX", "Stored", "load", "load_answer", "save"]

SUFFIX = ".safetensors"
_SCHEMA = 1
_ENTRY = "hubbub"
_RATES = "workload.learning_rates"
_STRATEGY = "strategy."
# The largest dense matrix, of 20,000 rounds, has 3 GiB; a header names some ten arrays.
_LARGEST = 2**32
_LARGEST_HEADER = 2**16
_MOST_AXES = 3
_LONGEST_TEXT = 2**13
_KEYS = {
    "schema", "hubbub", "strategy", "workload", "participation", "objective", "squared_error", "lower_bound", "bound_family",
    "iterations", "seconds", "command",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stored:
    """The content of a strategy file.

    Args:
        answer: Strategy, workload and participation are checked; error and bound are claims.
        hubbub: The version that wrote the file.
        seconds: Processor time of the optimization; ``None`` if unknown.
        command: The command that made it.
    """

    answer: Optimized[Strategy]
    hubbub: str
    seconds: float | None
    command: str


def save(path: str | Path, answer: Optimized[Strategy], *, seconds: float | None = None, command: str = "") -> None:
    """Write a strategy with its origin; :func:`load` returns it bit for bit.

    Args:
        path: Ends in ``.safetensors``; an existing file is replaced.
        answer: From ``optimize`` of any family, or :func:`hubbub.factorization.families.answer_of`.
        seconds: Processor time of the optimization.
        command: The command that made it.

    Raises:
        ValueError: Another ending, the least weighted mean, a text of more than 8192 letters, or arrays of more than 4 GiB.
        OSError: The file cannot be written; the old content stays.

    Example:
        >>> from hubbub.factorization import toeplitz
        >>> from hubbub.mechanism.workloads import prefix_sum
        >>> save("/dev/null", toeplitz.optimize(prefix_sum(rounds=8), bands=2))
        Traceback (most recent call last):
        ValueError: path = /dev/null: must end in .safetensors
    """
    file = Path(path)
    if file.suffix != SUFFIX:
        raise ValueError(f"path = {file}: must end in {SUFFIX}")
    if not isinstance(answer, Optimized):
        raise TypeError(f"answer = {shown(answer)}: must be an Optimized, as optimize or families.answer_of returns")
    if answer.objective == "weighted mean":
        raise ValueError(
            "answer: its objective is 'weighted mean', whose weights no strategy file states; save its matrix alone by "
            "numpy.save('C.npy', answer.strategy.matrix()), or optimize without weights"
        )
    arrays = {f"{_STRATEGY}{name}": np.ascontiguousarray(a) for name, a in strategy_arrays(answer.strategy).items()}
    if answer.workload.learning_rates is not None:
        arrays[_RATES] = np.array(answer.workload.learning_rates)
    size = sum(array.nbytes for array in arrays.values()) + _LARGEST_HEADER
    if size > _LARGEST:
        raise ValueError(f"answer: its strategy has {size:,} bytes, at most {_LARGEST:,} are read back; store what made it")
    stated = {
        "schema": _SCHEMA,
        "hubbub": __version__,
        "strategy": strategy_numbers(answer.strategy),
        "workload": {"rounds": answer.workload.rounds, "momentum": answer.workload.momentum},
        "participation": participation_record(answer.participation),
        "objective": answer.objective,
        "squared_error": float(answer.squared_error),
        "lower_bound": float(answer.lower_bound),
        "bound_family": _text("bound_family", answer.bound_family),
        "iterations": int(answer.iterations),
        "seconds": seconds,
        "command": _text("command", command),
    }
    content = safetensors.save(arrays, {_ENTRY: strict_json.canonical(stated).decode()})
    # What is not read back replaces no file.
    _stored(_stated(content), arrays)
    files.write_atomic(file, content, mode=0o644)


def load(path: str | Path) -> Strategy:
    """The strategy of a file, checked by its constructor.

    Raises:
        DataError: The file is missing, or is not what :func:`save` writes; the message names file and field.
    """
    return load_answer(path).answer.strategy


def load_answer(path: str | Path) -> Stored:
    """The strategy of a file, and its stated origin, error and bound."""
    file = Path(path)
    try:
        content = files.read(file.resolve(), at_most=_LARGEST)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    try:
        return _stored(_stated(content), safetensors.load(content))
    except (SafetensorError, ValueError, TypeError, OverflowError, HubbubError) as error:
        raise DataError(f"{file}: is no strategy file ({error})") from error


def _stated(content: bytes) -> Mapping[str, Any]:
    """The metadata of the header, after its arrays were checked to be float64 and no larger than the file."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError(f"its header claims {length:,} of {len(content):,} bytes; at most {_LARGEST_HEADER:,} are read")
    header = table("its header", strict_json.loads(content[8 : 8 + length]))
    metadata = table("__metadata__", header.pop("__metadata__", None))
    if set(metadata) != {_ENTRY} or not isinstance(metadata[_ENTRY], str):
        raise ValueError(f"its metadata are not the one entry {_ENTRY!r}")
    for name, described in header.items():
        if name != _RATES and not name.startswith(_STRATEGY):
            raise ValueError(f"array {name[:80]!r}: is no part of a strategy file")
        which = f"array {name[:80]!r}"
        array = table(which, described)
        if array.get("dtype") != "F64":
            raise ValueError(f"{which}: dtype = {str(array.get('dtype'))[:20]!r}, must be 'F64'")
        shape = array.get("shape")
        if not isinstance(shape, list) or not 1 <= len(shape) <= _MOST_AXES:
            raise ValueError(f"{which}: shape = {str(shape)[:40]}: must have 1 to {_MOST_AXES} axes")
        for size in shape:
            integer(f"{which}: shape", size, at_least=1, at_most=_LARGEST)
    return table(_ENTRY, strict_json.loads(metadata[_ENTRY].encode()))


def _stored(stated: Mapping[str, Any], arrays: Mapping[str, Array]) -> Stored:
    if type(stated.get("schema")) is not int or stated["schema"] != _SCHEMA:
        raise ValueError(f"schema = {str(stated.get('schema'))[:40]!r}: this hubbub reads {_SCHEMA}; use the one that wrote it")
    if missing := sorted(_KEYS - set(stated)):
        raise ValueError(f"{missing[0]}: is missing")
    if unknown := sorted(set(stated) - _KEYS):
        raise ValueError(f"{unknown[0][:80]!r}: is no part of a strategy file")
    strategy = _strategy(table("strategy", stated["strategy"]), arrays)
    workload = _workload(table("workload", stated["workload"]), arrays.get(_RATES), strategy.rounds)
    seconds = stated["seconds"]
    answer = Optimized(
        strategy=strategy,
        workload=workload,
        participation=participation_of(table("participation", stated["participation"])),
        objective=one_of("objective", stated["objective"], ("mean", "max")),  # type: ignore[arg-type] # one of them now
        squared_error=non_negative("squared_error", stated["squared_error"]),
        lower_bound=non_negative("lower_bound", stated["lower_bound"]),
        bound_family=_text("bound_family", stated["bound_family"]),
        iterations=integer("iterations", stated["iterations"], at_least=0),
    )
    return Stored(
        answer=answer,
        hubbub=_text("hubbub", stated["hubbub"]),
        seconds=None if seconds is None else non_negative("seconds", seconds),
        command=_text("command", stated["command"]),
    )


def _strategy(numbers: Mapping[str, Any], arrays: Mapping[str, Array]) -> Strategy:
    parts = dict(numbers)
    for name, value in numbers.items():
        if isinstance(value, Mapping | list):
            raise TypeError(f"strategy.{name[:80]} = {str(value)[:40]}: must be a number or a word; arrays stand apart")
    for name, array in arrays.items():
        if name == _RATES:
            continue
        field = name.removeprefix(_STRATEGY)
        if field in parts:
            raise ValueError(f"{name[:80]}: is stated twice, as a number and as an array")
        parts[field] = array
    return from_parts(parts)


def _workload(stated: Mapping[str, Any], rates: Array | None, rounds: int) -> Workload:
    if set(stated) != {"rounds", "momentum"}:
        raise ValueError(f"workload has {sorted(stated)[:4]}: must have rounds and momentum")
    # Before anything of that size is made.
    integer("workload.rounds", stated["rounds"], at_least=rounds, at_most=rounds)
    if rates is not None and rates.shape != (rounds,):
        raise ValueError(f"{_RATES} has shape {rates.shape}: must be ({rounds},)")
    return Workload(rounds, stated["momentum"], None if rates is None else tuple(rates.tolist()))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise TypeError(f"{name} = {str(value)[:80]!r}: must be text of at most {_LONGEST_TEXT} letters")
    return value
