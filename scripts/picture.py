"""The picture in ARCHITECTURE.md, drawn from the import contract: ``python scripts/picture.py`` writes it."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- picture: drawn from the import contract in pyproject.toml -->\n", "<!-- end of picture -->\n"


def picture() -> str:
    """The floors, the highest first, each package with the first sentence of its docstring."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    lines = []
    for number, floor in reversed(list(enumerate(reversed(contract["layers"]), start=1))):
        for name in floor.split(" | "):
            package = ROOT / "src" / "hubbub" / name
            file = package / "__init__.py" if package.is_dir() else package.with_suffix(".py")
            first = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
            lines.append(f"{number}  {name + ('/' if package.is_dir() else '.py'):<16}{first.split(': ')[0].rstrip('.')}")
    return "```\n" + "\n".join(lines) + "\n```\n"


def drawn(page: str) -> str:
    """The page with today's picture in it."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + picture() + END + rest.split(END)[1]


if __name__ == "__main__":
    path = ROOT / "ARCHITECTURE.md"
    path.write_text(drawn(path.read_text()))
