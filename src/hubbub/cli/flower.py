"""``hubbub flower``: apps to start from."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(help="Private federations on Flower.", rich_markup_mode="rich")


@app.callback()
def _flower() -> None:
    """Private federations on Flower."""


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(help="A new folder, which becomes the app's name: small letters, digits, underscores.")
    ],
) -> None:
    """Write an example app to start from: PyTorch on digits, private by one line."""
    from hubbub.cli.output import console, say
    from hubbub.engine.apps import write_example

    screen, folder = console(), Path(name)
    for path in write_example(folder):
        say(screen, f"Wrote {path}")
    say(screen, f"Try it: cd {folder} && python run_local.py; README.md says how to go on.")
