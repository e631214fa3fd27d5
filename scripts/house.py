"""How large the house is: lines, files, floors, circles, what one import pulls in, and what a run computes. ``make house``."""

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import grimp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hubbub"


def sources(folder: Path) -> list[Path]:
    """The Python files under a folder."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def documentation(path: Path) -> tuple[int, int]:
    """Lines of docstrings and comments, and lines of code, of a file."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    empty = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in empty:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= documented
    return len(documented) + len(comments - code), len(code)


def circles() -> list[set[str]]:
    """Files that import one another in a circle, at any time."""
    graph = grimp.build_graph("hubbub", cache_dir=None)
    behind = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found: list[set[str]] = []
    for module, upstream in behind.items():
        circle = {module} | {other for other in upstream if module in behind[other]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def printed(program: str) -> int:
    """The number that a program prints last."""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return int(run.stdout.split()[-1])


COUNTED = """
import sys
counted = 0

def watch(frame, event, argument):
    global counted
    code = frame.f_code
    if event == "call" and code.co_name == "epsilon" and code.co_filename.endswith("accounting/composition.py"):
        counted += 1

sys.setprofile(watch)
"""
IN_PYTHON = """
import torch
import hubbub

clients = [(torch.randn(5, 3), torch.randint(2, (5,))) for _ in range(20)]
mechanism = hubbub.calibrate(rounds=10, participation=hubbub.PoissonSampling(0.2), epsilon=8.0, delta=1e-4)
population = hubbub.SimulatedPopulation(clients, torch.nn.functional.cross_entropy)
list(hubbub.train(hubbub.Plan(mechanism, clip_norm=1.0, delta=1e-4), population, torch.nn.Linear(3, 2)))
"""
BY_COMMAND = """
import tempfile
from hubbub.cli import main

try:
    main(["train", "examples/digits.toml", "--out", tempfile.mkdtemp() + "/run", "--set", "training.rounds=10"])
except SystemExit:
    pass
"""
LOADED = "\nimport sys; print(sum(name.split('.')[0] == 'hubbub' for name in sys.modules))"


def rows() -> list[tuple[str, str, str]]:
    """What is measured, the figure, and the goal."""
    files = sources(PACKAGE)
    lines = sum(len(path.read_text().splitlines()) for path in files)
    counts = [documentation(path) for path in files]
    tests = sum(len(path.read_text().splitlines()) for path in sources(ROOT / "tests"))
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    compiled = [path for kind in ("*.c", "*.cpp", "*.cu", "*.pyx", "*.rs") for path in PACKAGE.rglob(kind)]
    behind = [printed(f"import hubbub.{module}; {LOADED}") for module in ("mechanism", "accounting.guarantee")]
    return [
        ("lines of source, docstrings and all", f"{lines:,}", "≤ 38,000"),
        ("files of source", f"{len(files)}", "≤ 220"),
        ("documentation per line of code", f"{sum(doc for doc, _ in counts) / sum(code for _, code in counts):.2f}", "≥ 0.5"),
        ("files at the root", f"{len(list(PACKAGE.glob('*.py')))}", "≤ 4"),
        ("floors", f"{len(contract['layers'])}", "≤ 9"),
        ("circles of imports", f"{len(circles())}", "0"),
        ("files behind hubbub.mechanism", f"{behind[0]}", "≤ 25"),
        ("files behind hubbub.accounting.guarantee", f"{behind[1]}", "≤ 50"),
        ("files behind ten simulated rounds in Python", f"{printed(IN_PYTHON + LOADED)}", "≤ 90 for one round"),
        ("files behind ten rounds of the command", f"{printed(BY_COMMAND + LOADED)}", "≤ 90 for one round"),
        ("epsilons computed in ten rounds in Python", f"{printed(COUNTED + IN_PYTHON + 'print(counted)')}", "≤ 15"),
        ("epsilons computed by the command, with curve", f"{printed(COUNTED + BY_COMMAND + 'print(counted)')}", "≤ 15"),
        ("lines of tests", f"{tests:,}", "≤ 42,000"),
        ("sources that need a compiler", f"{len(compiled)}", "0"),
    ]


def main() -> None:
    """Print the table."""
    table = Table("", "now", "goal")
    for row in rows():
        table.add_row(*row)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
