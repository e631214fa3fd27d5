"""The package as others get it: built, installed by itself, and used far from its source."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from hubbub import __version__

ROOT = Path(__file__).parent.parent
# What takes long to load, and what no help needs.
HEAVY = {"cryptography", "dp_accounting", "flwr", "jinja2", "matplotlib", "numpy", "PIL", "scipy", "sklearn", "torch"}
BARE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path, status: int = 0, env: dict[str, str] | None = None) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=env or BARE, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def ours() -> list[str]:
    """The project's files, those that are new included."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT, env=dict(os.environ))
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ours():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def bare(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and beside it the libraries that the tests have."""
    place = tmp_path_factory.mktemp("bare") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place.parent)
    program = place / "bin" / "python"
    installing = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", built[1])
    run(sys.executable, "-m", "pip", "--python", program, *installing, cwd=place.parent)
    # A line in a .pth adds the folder without its own .pth files: the source tree of an editable install stays out.
    (site,) = place.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    assert Path(run(program, "-c", "import hubbub; print(hubbub.__file__)", cwd=place.parent)).is_relative_to(site)
    return program.parent


def test_the_wheel_holds_the_package_and_the_source_distribution_the_project_whole_and_nothing_else(
    built: tuple[Path, Path],
) -> None:
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in ours() if name.startswith("src/hubbub/")}
    assert {"hubbub/py.typed", "hubbub/report/templates/references.bib"} < names
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if ".egg-info/" in name)}
    assert names - made == set(ours()) - {".gitignore"}


def test_the_wheel_says_of_itself_what_is_so(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        folder = f"hubbub-{__version__}.dist-info"
        # It checks each field.
        told = Metadata.from_email(wheel.read(f"{folder}/METADATA"), validate=True)
        assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (told.name, str(told.version), told.license_expression) == ("hubbub", __version__, "Apache-2.0")
    assert told.description == (ROOT / "README.md").read_text()
    assert told.description_content_type == "text/markdown"
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_installed_package_says_its_version_and_helps(bare: Path, tmp_path: Path) -> None:
    for command in ((bare / "hubbub",), (bare / "python", "-m", "hubbub")):
        assert run(*command, "--version", cwd=tmp_path) == f"hubbub {__version__}\n"
        assert "train" in run(*command, "--help", cwd=tmp_path)


def test_importing_loads_no_library_and_helping_no_heavy_one(bare: Path, tmp_path: Path) -> None:
    # Some distributions of Python load a module of theirs at every start.
    loaded = "print(*sorted({name.partition('.')[0] for name in sys.modules if name not in first} - sys.stdlib_module_names))"
    start = "import sys, atexit; first = set(sys.modules)"
    assert run(bare / "python", "-c", f"{start}; import hubbub; {loaded}", cwd=tmp_path).split() == ["hubbub"]
    for arguments in (["--help"], ["train", "--help"], ["flower", "new", "--help"]):
        program = f"{start}; atexit.register(lambda: {loaded}); import hubbub.cli; hubbub.cli.main({arguments})"
        last = run(bare / "python", "-c", program, cwd=tmp_path).splitlines()[-1]
        assert "typer" in last
        assert not HEAVY & set(last.split()), arguments


def test_pip_installs_the_wheel_with_all_that_it_needs(built: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    program = tmp_path / "venv" / "bin" / "python"
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    installing = ("install", "--quiet", "--constraint", "constraints.txt", built[1])
    run(program, "-m", "pip", *installing, cwd=tmp_path, env=dict(os.environ))
    run(program, "-m", "pip", "check", cwd=tmp_path)
    for name in ("run.toml", "own.py"):
        run(program.parent / "hubbub", "new", name, cwd=tmp_path)
    told = run(program.parent / "hubbub", "train", "run.toml", cwd=tmp_path)
    assert (tmp_path / "runs" / "run-1" / "report.html").is_file(), told
    assert "epsilon 6.000" in run(program, "own.py", cwd=tmp_path)
    assert "All is well." in run(program.parent / "hubbub", "doctor", cwd=tmp_path)
