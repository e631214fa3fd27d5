"""The site of the documentation: built once for all tests here, and read as files."""

import ast
import fcntl
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args, get_type_hints
from urllib.parse import unquote, urlsplit

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hubbub import errors
from hubbub.cli.app import app
from hubbub.experiment.config import Config, load, resolve
from hubbub.experiment.planner import planned

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src"
OWN = "## Your own model, data and loop"
# The parts of pages whose code is whole programs: it runs. That of the others is parts of them, or needs what is not here.
CODE_THAT_RUNS = (
    ("accounting", "## What an epsilon means"),
    ("central", "## From Opacus"),
    ("central", OWN),
    ("choosing-a-strategy", "## Correlated noise, in pictures"),
    ("first-run", ""),
    ("flower", "## From Flower's own differential privacy"),
    ("planning", ""),
    ("settings", "## Errors"),
)
SETTINGS_THAT_PLAN = (("central", "## From Opacus"), ("choosing-a-strategy", "## Which mechanism for me?"), ("settings", ""))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; processes that run the tests together share one."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared
    folder, told = shared / "site", shared / "site.log"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            told.write_text(f"{done.stderr}\nstatus {done.returncode}")
    assert told.read_text().endswith("status 0"), told.read_text()[-4000:]
    return folder


class _Parts(HTMLParser):
    """What a page asks for, where it leads, and where one can lead to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "manifest"):
            self.asked.append(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source", "video", "object", "embed"):
            self.asked += [given[name] for name in ("src", "srcset", "data") if name in given]


@cache
def parts(page: Path) -> _Parts:
    found = _Parts()
    found.feed(page.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_nothing_of_the_site_is_fetched_from_outside(site: Path) -> None:
    for page in site.rglob("*.html"):
        for asked in parts(page).asked:
            assert not urlsplit(asked).scheme or asked.startswith("data:"), (page, asked)
            assert not asked.startswith("//"), (page, asked)
    for sheet in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']*", sheet.read_text())
        assert not outside, (sheet, outside)


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_to_a_place_on_it(site: Path) -> None:
    looked_at = 0
    for page in (page for page in site.rglob("*.html") if page.name != "404.html" and "reports" not in page.parts):
        for link in parts(page).links:
            there = urlsplit(link)
            if there.scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(there.path)).resolve() if there.path else page
            assert target.is_file(), (page.name, link)
            if there.fragment and target.suffix == ".html":
                assert unquote(there.fragment) in parts(target).ids, (page.name, link)
            looked_at += 1
    assert looked_at > 5_000


@pytest.mark.slow
def test_every_name_that_a_package_offers_is_in_the_reference(site: Path) -> None:
    packages, named = {}, 0
    for file in (SOURCE / "hubbub").rglob("__init__.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                packages[".".join(file.parent.relative_to(SOURCE).parts)] = ast.literal_eval(node.value)
    # What is not public, programs, which are run and not imported, and what the package above offers.
    apart = ("hubbub._util", "hubbub.cli", "hubbub.report", "hubbub.training.run_folder", "hubbub.training.simulation")
    for package in packages.keys() - set(apart):
        known = parts(site / "api" / f"{package}.html").ids
        for name in packages[package]:
            if not name.startswith("__"):
                assert f"{package}.{name}" in known, f"{package}.{name} is not in the reference"
                named += 1
    assert named > 100


def _commands(path: tuple[str, ...], command: object) -> Iterator[tuple[str, ...]]:
    children = getattr(command, "commands", {})
    for name, child in children.items():
        yield from _commands((*path, name), child)
    if not children:
        yield path


@pytest.mark.slow
def test_every_flag_that_a_command_has_in_its_help_is_on_the_page_of_the_command_line(site: Path) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "command-line.html").read_text()))
    sections = dict(re.findall(r"^(hubbub [a-z ]+?)#\n(.*?)(?=^hubbub [a-z ]+?#\n|\Z)", text, re.MULTILINE | re.DOTALL))
    seen = 0
    for path in _commands((), get_command(app)):
        helped = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "300", "TERM": "dumb"}, prog_name="hubbub")
        assert helped.exit_code == 0, helped.output
        section = sections[" ".join(["hubbub", *path])]
        for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", helped.output)) - {"--help"}:
            assert flag in section, (path, flag)
            seen += 1
    assert seen > 100


def _words(hint: object) -> str:
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", tuple[str, ...]: "list of texts"}
    return words[hint] if hint in words else " or ".join(words[part] for part in get_args(hint) if part in words)


def test_the_page_of_the_settings_has_every_key_with_its_type_and_default() -> None:
    sections = re.split(r"^## \[(\w+)\]$", (DOCS / "settings.md").read_text(), flags=re.MULTILINE)[1:]
    written = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(written) == [section.name for section in fields(Config)]
    for section in fields(Config):
        kind = get_type_hints(Config)[section.name]
        hints = get_type_hints(kind)
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.+) \|$", written[section.name], re.MULTILINE)
        defaults = [(key.name, "unset" if key.default is None else f"`{json.dumps(key.default)}`") for key in fields(kind)]
        expected = [(name, _words(hints[name]), default) for name, default in defaults]
        assert [row[:3] for row in rows] == expected, f"[{section.name}]: docs/settings.md must have these rows"


def test_the_page_of_the_errors_has_all_of_them() -> None:
    text = (DOCS / "settings.md").read_text()
    assert set(re.findall(r"^\| `(\w+Error)` \|", text, re.MULTILINE)) == set(errors.__all__)


def test_the_numbers_beside_the_peers_are_the_measured_ones() -> None:
    measured = set(re.findall(r"[\d.,]*\d", (ROOT / "benchmarks" / "README.md").read_text()))
    rows = re.findall(r"^\| .* \| (?:yes|\*\*no\*\*|–) \|$", (DOCS / "results.md").read_text(), re.MULTILINE)
    assert len(rows) > 12
    for row in rows:
        _, *numbers, _ = row.strip("| ").split(" | ")
        for number in re.findall(r"[\d.,]*\d", " ".join(numbers)):
            assert number in measured, (row, number)


def blocks(page: str, section: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text()
    if section:
        text = text.partition(f"\n{section}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


@pytest.mark.parametrize(("page", "section"), CODE_THAT_RUNS)
def test_the_code_of_a_page_runs(page: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page, section, "python")
    assert found
    names: dict[str, object] = {"__name__": "page"}
    for code in found:
        exec(compile(code, f"{page}.md", "exec"), names)  # noqa: S102 # our own page


@pytest.mark.parametrize(("page", "section"), SETTINGS_THAT_PLAN)
def test_the_settings_of_a_page_make_a_plan(page: str, section: str, tmp_path: Path) -> None:
    found = blocks(page, section, "toml")
    assert found
    for number, content in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(content)
        settings = load(file)
        # Who comes once is not there for 40 rounds of a tenth of all.
        once = settings.get("participation", {}).get("pattern") == "single"
        config = resolve({"training": {"rounds": 9 if once else 40}}, settings)
        clients = 40 if config.privacy.unit == "client" else 1_000
        assert planned(config, clients).mechanism is not None, content
