"""The plans by which clients are trained, by their names; loads no torch, so that settings are checked without."""

import re
from dataclasses import dataclass

from hubbub._checks import shown
from hubbub.errors import ConfigError

__all__ = ["AUTO", "MOST_AT_ONCE", "ExecutionPlan"]

AUTO = "auto"
MOST_AT_ONCE = 1024
_FORM = re.compile(r"one-by-one(-channels-last)?|batched-([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class ExecutionPlan:
    """Clients one by one, or so many at a time.

    Args:
        clients: At a time, from 1 to 1024.
        channels_last: Whether a single client's images are stored channel by channel within a pixel; stacks always are.

    Example:
        >>> ExecutionPlan.named("batched-16")
        ExecutionPlan(clients=16, channels_last=False)
        >>> ExecutionPlan(channels_last=True).name
        'one-by-one-channels-last'
    """

    clients: int = 1
    channels_last: bool = False

    @property
    def name(self) -> str:
        """As settings and flags have it."""
        if self.clients > 1:
            return f"batched-{self.clients}"
        return "one-by-one-channels-last" if self.channels_last else "one-by-one"

    @classmethod
    def named(cls, name: str) -> "ExecutionPlan":
        """The plan of a name.

        Raises:
            ConfigError: There is none.
        """
        found = _FORM.fullmatch(name)
        clients = int(found[2] or 1) if found else 0
        if not found or (found[2] and not 2 <= clients <= MOST_AT_ONCE):
            raise ConfigError(
                f"plan = {shown(name)}: must be 'auto', 'one-by-one', 'one-by-one-channels-last' or 'batched-K' for K "
                f"clients at a time, K from 2 to {MOST_AT_ONCE}"
            )
        return cls(clients, bool(found[1]))
