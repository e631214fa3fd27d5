"""Resources: mutants."""

from mutants.mutant import Mutant

MUTANTS: list[Mutant] = []
