"""Shared tools that know nothing of privacy: checks, files, JSON, roots of equations, pseudorandom bits."""
