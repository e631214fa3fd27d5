"""``hubbub new``: a file to start from, for whoever has the package alone."""

from importlib.resources import files as resources
from pathlib import Path

from hubbub.cli.output import console, say
from hubbub.errors import ConfigError

__all__ = ["new"]

# By the suffix that was asked for: the template, how to try what comes of it, and what it is.
_KINDS = {
    ".toml": ("settings.toml", "hubbub train", "the settings of a run"),
    ".py": ("own_model.py", "python", "a model and data of your own"),
}


def new(file: Path) -> None:
    """Write a file that runs as it is, and say how.

    Raises:
        ConfigError: The file exists, its folder does not, or its name ends in neither .toml nor .py.
    """
    kind = _KINDS.get(file.suffix)
    if kind is None:
        choices = ", or ".join(f"a name that ends in {suffix} for {what}" for suffix, (_, _, what) in _KINDS.items())
        raise ConfigError(f"FILE = '{file}': choose {choices}")
    template, command, _ = kind
    text = (resources("hubbub") / "cli" / "templates" / f"{template}.template").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text.replace("examples/own_model.py", str(file)))
    except FileExistsError as error:
        raise ConfigError(f"FILE = '{file}': exists already; choose another name") from error
    except FileNotFoundError as error:
        raise ConfigError(f"FILE = '{file}': there is no folder '{file.parent}'; make it first") from error
    screen = console()
    say(screen, f"Wrote {file}")
    say(screen, f"Try it: {command} {file}")
