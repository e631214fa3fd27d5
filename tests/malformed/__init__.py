"""What hubbub must refuse: malformed files and values, family by family, each the same on every day.

A family is a function from a whole :class:`Run` to its cases. A case damages a copy of that run, or says something wrong on a
command line or to a function, and knows what the one line that refuses it must name. The config of that run asks for
``malformed:people`` and ``malformed:Line``.
"""

from malformed.base import CALIBRATE, CONFIG, NOISY, RESUME, Accepted, Call, Case, Command, Line, Run, people
from malformed.damages import Workplace
from malformed.families import FAMILIES
from malformed.taken import whole

__all__ = [
    "CALIBRATE",
    "CONFIG",
    "FAMILIES",
    "NOISY",
    "RESUME",
    "Accepted",
    "Call",
    "Case",
    "Command",
    "Line",
    "Run",
    "Workplace",
    "people",
    "whole",
]
