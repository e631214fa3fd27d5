"""Mutants: changes of the source, each of which a named test must notice.

A family has a file here; ``ALL`` is all of them. To try some by hand::

    python tests/mutants "words of their names"
"""

import importlib
import pkgutil

from mutants.mutant import Mutant

__all__ = ["ALL", "Mutant"]

_TOOLS = ("mutant", "laboratory", "server", "__main__")

_NAMES = sorted({module.name for module in pkgutil.iter_modules(__path__)} - {*_TOOLS})
ALL: list[Mutant] = [mutant for name in _NAMES for mutant in importlib.import_module(f"mutants.{name}").MUTANTS]
