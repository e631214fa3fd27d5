"""Flower apps as files: the app of a run, and an example to start from."""

import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from hubbub._util import files
from hubbub.errors import ConfigError

# The packages of the two apps, as their templates have them.
RUN_APP = "hubbub_app"
_EXAMPLE = "flower_quickstart"
# Templates have a suffix, so that no tool takes them for modules of this package.
_SUFFIX = ".template"
# Packages that the example imports.
_TAKEN = ("flwr", "hubbub", "numpy", "sklearn", "torch")


def write_run_app(folder: Path, config: str, *, allow_import: bool) -> None:
    """Write the app of a run for the user alone, over the files of an earlier start."""
    texts = _texts("run", {"allow-import = false": tomli_w.dumps({"allow-import": allow_import}).strip()})
    # Each folder on its own, since a link could lead out of the run's folder.
    files.make_folder(folder)
    files.make_folder(folder / RUN_APP)
    for path, text in {**texts, f"{RUN_APP}/config.toml": config}.items():
        files.write_atomic(folder / path, text.encode())


def write_example(folder: Path) -> list[Path]:
    """Write an example app, named after the folder, into a new folder; returns its files."""
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name, re.ASCII) or keyword.iskeyword(name):
        raise ConfigError(f"NAME = {name!r}: becomes a Python package; use lower-case letters, digits and underscores")
    if name in sys.stdlib_module_names or name in _TAKEN:
        raise ConfigError(f"NAME = {name!r}: another Python package has this name; choose another")
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; choose another name")
    texts = _texts("quickstart", {_EXAMPLE: name, _EXAMPLE.replace("_", "-"): name.replace("_", "-")})
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return [folder / path for path in texts]


def _texts(template: str, changes: Mapping[str, str]) -> dict[str, str]:
    root, found = Path(__file__).parents[2] / "flower" / "templates" / template, {}
    for file in sorted(root.rglob(f"*{_SUFFIX}")):
        path, text = file.relative_to(root).as_posix().removesuffix(_SUFFIX), file.read_text(encoding="utf-8")
        for word, other in changes.items():
            path, text = path.replace(word, other), text.replace(word, other)
        found[path] = text
    return found
