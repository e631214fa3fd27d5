"""What hubbub must refuse: malformed files and values, the same on every day.

A family is a function from a whole :class:`Run` to its cases. Most apply a law of :mod:`malformed.laws` to each file, setting,
flag or message there is; the others are what no law makes: digests that are forged, orders that cannot be, names that steer a
terminal. The config of the run asks for ``malformed:people`` and ``malformed:Line``.
"""

from malformed import inputs, messages, runs
from malformed.place import CALIBRATE, CONFIG, EVERY, NOISY, RESUME, Accepted, Call, Case, Command, Line, Run, Workplace, people

__all__ = [
    "CALIBRATE", "CONFIG", "EVERY", "FAMILIES", "NOISY", "RESUME",
    "Accepted", "Call", "Case", "Command", "Line", "Run", "Workplace", "people", "whole",
]  # fmt: skip

whole = runs.whole
_ALL = [
    runs.damaged_files, runs.kinds_of_file, runs.modes, runs.moved_lines, runs.rolled_back, runs.forged_records,
    runs.forged_order, runs.forged_cohorts, runs.forged_promises, runs.forged_tensors, runs.documents, runs.metrics,
    runs.extra_releases, runs.edited_settings,
    inputs.settings, inputs.flags, inputs.heads, inputs.names, inputs.matrices, inputs.data_sets,
    messages.contributions, messages.replies, messages.agreements, messages.holder_messages, messages.holder_folders,
    messages.state_folders,
]  # fmt: skip
FAMILIES = {family.__name__.replace("_", " "): family for family in _ALL}
