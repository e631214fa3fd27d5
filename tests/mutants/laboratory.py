"""Copies of the package with one change each, and what a test says of them."""

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import hubbub
from mutants.mutant import Mutant

PACKAGE = Path(hubbub.__file__).parent
HERE = Path(__file__).parent


class Laboratory:
    """Tries mutants, one at a time; a context manager."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._tried = scratch, 0

    def __enter__(self) -> "Laboratory":
        # Processes that a test starts would compile torch anew each time, if they were told to write nothing.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, str(HERE / "server.py"), str(self._scratch / "compiled")]
        # What libraries print while they load belongs to nobody.
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._server = subprocess.Popen(command, env=environment, text=True, **streams)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.communicate()

    def outcome(self, mutant: Mutant | None, test: str) -> tuple[str, str]:
        """What a test says of a copy, and what it printed; without a mutant the copy is the package as it is."""
        self._tried += 1
        # Always the same folder, and with the times of the files, so that what is unchanged is compiled once.
        folder = self._scratch / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(PACKAGE, folder / "hubbub", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            name, text = changed(mutant)
            file = folder / "hubbub" / name
            file.write_text(text)
            # A time that no other change of the file has: by it and the length a compiled form is taken for good.
            os.utime(file, (self._tried, self._tried))
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps({"folder": str(folder), "test": test}) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return answer["outcome"], answer["output"]


def changed(mutant: Mutant) -> tuple[Path, str]:
    """The file below the package and its text with the change."""
    file, tree, scope = _place(mutant)
    old, new = ast.parse(textwrap.dedent(mutant.old)).body, ast.parse(textwrap.dedent(mutant.new)).body
    if len(old) == len(new) == 1 and isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr):
        found = _replace_expression(scope, old[0].value, new[0].value)
    else:
        found = _replace_statements(scope, old, new)
    assert found == 1, f"{mutant.what}: {mutant.at} holds {found} times {mutant.old!r}"
    return file.relative_to(PACKAGE), ast.unparse(ast.fix_missing_locations(tree))


def _place(mutant: Mutant) -> tuple[Path, ast.Module, ast.AST]:
    """The one file, its tree, and the node in it that is called so."""
    found = [(file, name) for file, name in _names() if f".{name}".endswith(f".{mutant.at}")]
    assert len(found) == 1, f"{mutant.what}: {len(found)} places are called {mutant.at}"
    file, wanted = found[0]
    tree = ast.parse(file.read_text())
    return file, tree, next(node for name, node in _named(tree, _module(file)) if name == wanted)


@functools.cache
def _names() -> list[tuple[Path, str]]:
    """All modules, functions and classes of the package by their qualified names."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [(file, name) for file in files for name, _ in _named(ast.parse(file.read_text()), _module(file))]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def _named(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Module):
        yield name, node
    for child in ast.iter_child_nodes(node):
        inner = f"{name}.{child.name}" if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else name
        if inner != name:
            yield inner, child
        yield from _named(child, inner)


def _replace_expression(scope: ast.AST, old: ast.expr, new: ast.expr) -> int:
    wanted = ast.unparse(old)
    found = [
        (node, field, value, index)
        for node in ast.walk(scope)
        for field, value in ast.iter_fields(node)
        for index, part in enumerate(value if isinstance(value, list) else [value])
        if isinstance(part, ast.expr) and ast.unparse(part) == wanted
    ]
    for node, field, value, index in found[:1]:
        if isinstance(value, list):
            value[index] = new
        else:
            setattr(node, field, new)
    return len(found)


def _replace_statements(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    wanted = [ast.unparse(statement) for statement in old]
    found = [
        (body, first)
        for node in ast.walk(scope)
        for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody"))
        if isinstance(body, list)
        for first in range(len(body) - len(old) + 1)
        if [ast.unparse(statement) for statement in body[first : first + len(old)]] == wanted
    ]
    for body, first in found[:1]:
        body[first : first + len(old)] = new or [ast.Pass()]
    return len(found)
