"""The page of the command line, from what its commands say of themselves."""

import inspect
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("COLUMNS", "100")


def page() -> str:
    """Markdown: each command with its arguments and options."""
    from typer.main import get_command

    from hubbub.cli.app import app

    parts = [_HEAD]
    parts += [_section(path, command) for path, command in commands("hubbub", get_command(app)) if path != "hubbub"]
    return "\n".join(parts)


_HEAD = """# The command line

From `hubbub COMMAND --help`, when this site was built. `python -m hubbub` is the same program; `hubbub --version` says which.

| status | |
|---|---|
| 0 | done |
| 1 | a check fails: `verify`, `audit`, `doctor` |
| 2 | refused, after one line that says what is wrong; nothing was changed |
| 3 | the budget ended a run before its settings did (`stop_epsilon`); model and report are written |
| 130 | ended by Ctrl-C; `hubbub resume` goes on |

`--json`, where there is one, prints one strict JSON object. `HUBBUB_DEBUG=1` in the environment shows a refusal's traceback.
"""


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command below this one, with what one types for it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(f"{path} {name}", child)


def _section(path: str, command: Any) -> str:
    group = bool(getattr(command, "commands", None))
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    if group:
        return f"## {path}\n\n{text}\n"
    level = "##" if path.count(" ") == 1 else "###"
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option" and not parameter.hidden]
    words = [_named(a) if a.required else f"[{_named(a)}]" for a in arguments]
    usage = " ".join([path, *words, *(["[OPTIONS]"] if options else [])])
    rows = [f"| `{_named(a)}` | {_cell(a.help or '')} |" for a in arguments]
    rows += [f"| `{', '.join(o.opts + o.secondary_opts)}{_value(o)}` | {_cell(o.help or '')}{_default(o)} |" for o in options]
    table = "\n".join(["| | what it does |", "|---|---|", *rows]) if rows else ""
    return f"{level} {path}\n\n{text}\n\n```text\n{usage}\n```\n\n{table}\n"


def _named(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper().strip("[]")
    return name if argument.nargs == 1 or name.endswith("…") else f"{name.removesuffix('...')}…"


def _value(option: Any) -> str:
    if option.is_flag:
        return ""
    choices = getattr(option.type, "choices", None)
    return " " + str(option.metavar or ("|".join(map(str, choices)) if choices else option.type.name.upper()))


def _default(option: Any) -> str:
    plain = option.default is not None and not option.is_flag and not callable(option.default)
    return f" Default: `{option.default}`." if plain and str(option.default) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
