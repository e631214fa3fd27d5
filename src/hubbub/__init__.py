"""hubbub trains models on people's data with a privacy guarantee that can be proved, published and checked.

The rooms, from the ground up: ``participation`` (who may contribute when), ``sensitivity`` (how far one client can move the
result), ``strategies`` and ``mechanism`` (what noise hides that), ``accounting`` (what it costs), ``training`` (doing it).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub._version import __version__
    from hubbub.engine.finished import FinishedRun, load

__all__ = ["FinishedRun", "__version__", "load"]


def __getattr__(name: str) -> Any:
    # What loads tensors is loaded when it is asked for.
    if name in ("FinishedRun", "load"):
        from hubbub.engine import finished

        return getattr(finished, name)
    if name == "__version__":
        from hubbub._version import __version__

        return __version__
    raise AttributeError(f"module 'hubbub' has no attribute {name!r}")
