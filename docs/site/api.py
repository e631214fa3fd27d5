"""The reference: what is public, a page for each package, from ``__all__`` and the docstrings."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from repository import PACKAGES, SOURCE

TOP = "hubbub"
# Public modules of a package without names of its own.
MODULES = {
    TOP: ("testing", "errors", "experiment.tracking"),
    f"{TOP}.mechanism": ("participation", "workloads", "utility"),
    f"{TOP}.mechanism.strategies": ("toeplitz", "stamped"),
    f"{TOP}.secagg": ("paillier", "threshold", "packing", "textbook", "key_files"),
}


def file_of(module: str) -> Path | None:
    """The source file of a module or package, if there is one."""
    place = SOURCE.joinpath(*module.split("."))
    return next((file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None)


def offered(module: str) -> list[str]:
    """The names in a module's ``__all__``, those between underscores left out."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []


def sections(page: str) -> list[str]:
    """The modules whose names stand on a page: the package, those that it offers as names, and its public modules."""
    inside = [f"{page}.{name}" for name in offered(page) if file_of(f"{page}.{name}") and not _defines(page, name)]
    named = [f"{page}.{name}" for name in MODULES.get(page, ())]
    for module in named:
        if file_of(module) is None:
            raise FileNotFoundError(f"docs/site/api.py names {module}")
    return [page, *dict.fromkeys([*named, *inside])]


def names(module: str) -> list[str]:
    """The public functions, classes and constants of a module."""
    return [name for name in offered(module) if not file_of(f"{module}.{name}") or _defines(module, name)]


def pages() -> dict[str, str]:
    """The Markdown of the reference by its pages' names."""
    packages = [f"{TOP}.{name}" for name in PACKAGES]
    shown: set[str] = set()
    # What the top passes on is described on the page of its package.
    made = {f"api/{name}.md": _page(name, shown) for name in [*packages, TOP]}
    return {"api/index.md": _index([TOP, *packages]), **made}


def _index(listed: list[str]) -> str:
    rows = []
    for page in listed:
        for module in sections(page):
            links = ", ".join(f"[`{name}`]({page}.md#{module}.{name})" for name in names(module))
            if links:
                rows.append(f"| [`{module}`]({page}.md#{module}) | {links} |\n")
    return "# API reference\n\nEvery public name, from the docstrings.\n\n| module | names |\n|---|---|\n" + "".join(rows)


def _page(page: str, shown: set[str]) -> str:
    head = f"---\ntitle: {page}\nsearch:\n  boost: 0.5\n---\n\n# {page} {{ #{page} }}\n"
    return head + "\n".join(_section(page, module, shown) for module in sections(page))


def _section(page: str, module: str, shown: set[str]) -> str:
    text = "" if module == page else f"\n## {module} {{ #{module} }}\n"
    text += f"\n{(ast.get_docstring(_tree(module)) or '').splitlines()[0]}\n"
    return text + "".join(_entry(module, name, shown) for name in names(module))


def _entry(module: str, name: str, shown: set[str]) -> str:
    public, home = f"{module}.{name}", _home(module, name)
    if home is None:
        return f"\n### `{public}` {{ #{public} }}\n\nA constant.\n"
    defined = f"{home}.{name}"
    # Who follows a link to the name that one imports, and who follows one to the place of its definition, arrives here.
    anchor = f'<a id="{public}"></a>' if defined != public else ""
    if defined in shown:
        return f"\n{anchor}`{public}`: [`{defined}`][{defined}]\n"
    shown.add(defined)
    options = f'    options:\n      heading: "{public}"\n      heading_level: 3\n      show_root_heading: true\n'
    return f"\n{anchor}\n\n::: {defined}\n{options}"


def _home(module: str, name: str) -> str | None:
    """The module that defines a name, and None where one statement gives values to several at once."""
    if any(name in found for found in _defined(module)):
        return module if (name,) in _defined(module) else None
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _home(str(node.module), alias.name)
    raise LookupError(f"{module}.{name}")


def _defines(module: str, name: str) -> bool:
    return any(name in found for found in _defined(module)) or _imports_from_a_file(module, name)


def _imports_from_a_file(module: str, name: str) -> bool:
    """Whether a package takes a name from one of its modules, rather than that module itself."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module != module
        and name in {alias.asname or alias.name for alias in node.names}
        for node in ast.walk(_tree(module))
    )


def _defined(module: str) -> list[tuple[str, ...]]:
    """The names that the statements of a module define, by statement."""
    return list(_definitions(_tree(module)))


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield (node.name,)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                yield tuple(part.id for part in parts if isinstance(part, ast.Name))


@cache
def _tree(module: str) -> ast.Module:
    file = file_of(module)
    if file is None:
        raise FileNotFoundError(module)
    return ast.parse(file.read_text(encoding="utf-8"))
