"""Strict JSON: no NaN, no infinity, no repeated names, and a canonical form."""

import json
import math
from collections.abc import Mapping
from typing import Any

# Made once: a ledger of a million records is compared with this form line by line.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> bytes:
    """The canonical form of a value: sorted names, no spaces.

    Example:
        >>> canonical({"b": [1, 2], "a": None})
        b'{"a":null,"b":[1,2]}'
    """
    return _CANONICAL.encode(value).encode()


def finite_or_none(value: float | None) -> float | None:
    """The number, with ``None`` for infinity and NaN.

    Example:
        >>> finite_or_none(1.5), finite_or_none(float("inf"))
        (1.5, None)
    """
    return value if value is not None and math.isfinite(value) else None


def finite_only(value: Any) -> Any:
    """The value with ``None`` for each infinity and NaN in it, and lists for tuples.

    Example:
        >>> finite_only({"epsilon": float("inf"), "curve": [1.0, float("nan")]})
        {'epsilon': None, 'curve': [1.0, None]}
    """
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, Mapping):
        return {key: finite_only(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(item) for item in value]
    return value


def loads(content: bytes) -> Any:
    """The value of a JSON text.

    Example:
        >>> loads(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: the name 'a' comes twice
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("too many levels") from error


def loads_canonical(content: bytes) -> Any:
    """The value of a text in canonical form: fast, since no text that :func:`loads` refuses is canonical."""
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("too many levels") from error
    if canonical(value) != content:
        raise ValueError("it is not in canonical form")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name[:40]!r} comes twice")
        found[name] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not finite")
    return number
