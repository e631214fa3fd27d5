"""The reference: a page for each public module, and one for each room that lists its modules."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from repository import SOURCE, is_public, module_name

# The rooms in the order in which a reader meets them; those that are not named here come last.
ORDER = ("accounting", "strategies", "factorization", "noise", "gaussian", "training", "flower", "secagg", "audit", "datasets")
TOP = "hubbub"


def modules() -> dict[str, Path]:
    """All public modules by name."""
    return {module_name(file): file for file in sorted(SOURCE.rglob("*.py")) if is_public(file)}


def exported(file: Path) -> list[str]:
    """The names in a module's ``__all__``, those between underscores left out."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []


def origins(name: str, file: Path) -> dict[str, str]:
    """Where each public name of a package is defined, by its full name there."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {public: imported.get(public, f"{name}.{public}") for public in exported(file)}


def together(file: Path) -> list[str]:
    """The public names that one statement gives values to at once, of which the reference knows nothing by itself."""
    targets = [node.targets[0] for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    names = [
        part.id for target in targets if isinstance(target, ast.Tuple) for part in target.elts if isinstance(part, ast.Name)
    ]
    return [name for name in names if name in exported(file)]


def first_line(file: Path) -> str:
    """What a module says of itself in a line."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n")[0]


def rooms(found: Iterable[str], packages: set[str]) -> dict[str, list[str]]:
    """The modules of each package, and under the top name those that stand in none."""
    known = [f"{TOP}.{room}" for room in ORDER if f"{TOP}.{room}" in packages]
    ordered = [*known, *sorted(packages - set(known))]
    grouped: dict[str, list[str]] = {TOP: [], **{name: [] for name in ordered}}
    for name in found:
        package = ".".join(name.split(".")[:2])
        grouped[package if package in packages else TOP].append(name)
    return grouped


def pages() -> dict[str, str]:
    """The Markdown of the reference by its pages' names."""
    found = modules()
    packages = {name for name, file in found.items() if file.name == "__init__.py" and name.count(".") == 1}
    made = {f"api/{name}.md": _module(name, file) for name, file in found.items()}
    made["api/index.md"] = _index(rooms(found, packages), found)
    return made


_HEAD = """# API reference

Every public name, from the docstrings: a page for each module. What one imports most often:
"""


def _index(grouped: dict[str, list[str]], found: dict[str, Path]) -> str:
    parts = [_HEAD, _front_doors()]
    for room, names in grouped.items():
        rows = "".join(f"| [`{name}`]({name}.md) | {_cell(first_line(found[name]))} |\n" for name in names)
        parts.append(f"## {room.split('.')[-1]}\n\n| module | |\n|---|---|\n{rows}")
    return "\n".join(parts)


def _front_doors() -> str:
    doors = {
        "train, simulate": "hubbub.training.train SimulatedPopulation RunPlan LocalTraining private_gradients ReleasePath",
        "account": "hubbub.accounting.epsilon delta calibrate guarantee",
        "promise": "hubbub.mechanism.Mechanism hubbub.mechanism.participation.PoissonSampling MinSeparation FixedEpochs",
        "Flower": "hubbub.flower.DPFedAvgFixed DPFedAvgAdaptive MatrixFactorizationDP clipping_mod LocalGrid",
        "finished runs": "hubbub.load hubbub.verification.verify",
    }
    found, lines = modules(), []
    for what, names in doors.items():
        room, links = "", []
        for name in names.split():
            room, _, last = name.rpartition(".") if "." in name else (room, "", name)
            links.append(_link(last, origins(room, found[room])[last], found))
        lines.append(f"* {what}: {', '.join(links)}")
    return "\n".join(lines) + "\n"


def _link(shown: str, target: str, found: Iterable[str]) -> str:
    return f"[`{shown}`]({target}.md)" if target in found else f"[`{shown}`][{target}]"


def _module(name: str, file: Path) -> str:
    head = f"---\ntitle: {name}\nsearch:\n  boost: 0.5\n---\n\n::: {name}\n    options:\n"
    if file.name != "__init__.py":
        also = "".join(f"\n## `{public}` {{ #{name}.{public} }}\n\nA constant.\n" for public in together(file))
        return f"{head}      show_root_heading: true\n{also}"
    places, found = origins(name, file), modules()
    own = [public for public, place in places.items() if place == f"{name}.{public}" and place not in found]
    text = f"{head}      show_root_heading: true\n      members: {own or 'false'}\n"
    others = [f"* {_link(public, place, found)}" for public, place in places.items() if public not in own]
    return text + ("\n## Imported from here\n\n" + "\n".join(others) + "\n" if others else "")


def _cell(text: str) -> str:
    return re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")
