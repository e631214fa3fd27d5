"""The plans by which clients are trained, by their names; loads no torch, so that settings are checked without."""

import re
from dataclasses import dataclass

from hubbub._checks import shown
from hubbub.errors import ConfigError

__all__ = ["AUTO", "COMPILED", "MOST_AT_ONCE", "ExecutionPlan"]

AUTO = "auto"
MOST_AT_ONCE = 1024
# Clients of a compiled plan: as many as are lanes of a vector unit, or half as many.
COMPILED = (8, 16)
_FORM = re.compile(r"one-by-one(-channels-last)?|batched-([1-9][0-9]{0,3})(-compiled)?")


@dataclass(frozen=True)
class ExecutionPlan:
    """Clients one by one, or so many at a time.

    Args:
        clients: At a time, from 1 to 1024.
        channels_last: Whether a single client's images are stored channel by channel within a pixel; stacks always are.
        compiled: Whether convolutions are those of the kernel that ``hubbub kernel training`` builds; for 8 or 16 clients.

    Example:
        >>> ExecutionPlan.named("batched-16")
        ExecutionPlan(clients=16, channels_last=False, compiled=False)
        >>> ExecutionPlan(channels_last=True).name
        'one-by-one-channels-last'
    """

    clients: int = 1
    channels_last: bool = False
    compiled: bool = False

    @property
    def name(self) -> str:
        """As settings and flags have it."""
        if self.clients > 1:
            return f"batched-{self.clients}{'-compiled' if self.compiled else ''}"
        return "one-by-one-channels-last" if self.channels_last else "one-by-one"

    @classmethod
    def named(cls, name: str) -> "ExecutionPlan":
        """The plan of a name.

        Raises:
            ConfigError: There is none.
        """
        found = _FORM.fullmatch(name)
        clients = int(found[2] or 1) if found else 0
        if not found or (found[2] and not 2 <= clients <= MOST_AT_ONCE) or (found[3] and clients not in COMPILED):
            raise ConfigError(
                f"plan = {shown(name)}: must be 'auto', 'one-by-one', 'one-by-one-channels-last', 'batched-K' for K clients "
                f"at a time, K from 2 to {MOST_AT_ONCE}, or 'batched-K-compiled', K = {' or '.join(map(str, COMPILED))}"
            )
        return cls(clients, bool(found[1]), bool(found[3]))
