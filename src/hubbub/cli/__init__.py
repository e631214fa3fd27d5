"""The command line. Every heavy import waits until a command needs it, so that ``hubbub --help`` answers at once."""

from hubbub.cli.app import main

__all__ = ["main"]
