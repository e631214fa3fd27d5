"""Mutants: changes of the source, each of which a named test must notice.

A family has a file here; ``ALL`` is all of them. To try some by hand::

    python tests/mutants "words of their names"
"""

import importlib
import pkgutil

from mutants.mutant import Mutant

__all__ = ["ALL", "Mutant"]

_TOOLS = ("mutant", "laboratory", "server", "__main__")

ALL: list[Mutant] = [
    mutant
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    if module.name not in _TOOLS
    for mutant in importlib.import_module(f"mutants.{module.name}").MUTANTS
]
