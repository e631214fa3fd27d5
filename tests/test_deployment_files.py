"""What `hubbub flower new` writes for a deployment: units whose commands are Flower's, with TLS and enforced keys."""

import re
import shlex
import shutil
import subprocess
import sys
import warnings
from argparse import ArgumentParser
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "examples" / "flower_quickstart" / "deploy"
VALUES = {"HOST": "10.0.0.1", "SUPERLINK": "server.example:9000", "RUNTIME_PORT": "9094", "NODE_CONFIG": "partition-id=0"}
PAGES = (ROOT / "docs" / "operations.md", ROOT / "docs" / "flower.md", ROOT / "examples" / "flower_quickstart" / "README.md")


class Unit(ConfigParser):
    """A unit of systemd; of a key that comes again all values are kept."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.text = re.sub(r"\\\n\s+", "", path.read_text())
        self.read_string(self.text)

    def words(self) -> list[str]:
        return shlex.split(re.sub(r"\$\{(\w+)\}", lambda name: shlex.quote(VALUES[name[1]]), self["Service"]["ExecStart"]))


def parser_of(program: str) -> ArgumentParser:
    side = program.removeprefix("flower-")
    return getattr(import_module(f"flwr.{side}.cli.flower_{side}"), f"_parse_args_run_{side}")()


def test_the_server_speaks_tls_enforces_keys_keeps_them_and_installs_nothing() -> None:
    unit = Unit(DEPLOY / "hubbub-superlink.service")
    program, *arguments = unit.words()
    told = parser_of(Path(program).name).parse_args(arguments)
    assert told.enable_supernode_auth
    assert "--disable-runtime-dependency-installation" in arguments
    assert not told.insecure
    files = [told.ssl_ca_certfile, told.ssl_certfile, told.ssl_keyfile]
    assert files == [f"/etc/hubbub/{name}" for name in ("ca.crt", "server.pem", "server.key")]
    assert told.database.startswith("/var/lib/hubbub/")
    assert (told.host, told.port) == ("10.0.0.1", 9000)
    assert re.findall(r"^Environment=(?:.* )?(HUBBUB_LOG=json|FLWR_TELEMETRY_ENABLED=0)", unit.text, re.MULTILINE)


def test_a_node_compares_the_certificate_and_proves_its_key() -> None:
    unit = Unit(DEPLOY / "hubbub-supernode@.service")
    program, *arguments = unit.words()
    told = parser_of(Path(program).name).parse_args(arguments)
    assert told.root_certificates == "/etc/hubbub/ca.crt"
    assert told.auth_supernode_private_key == "/etc/hubbub/%i"
    assert not told.insecure
    assert "--allow-runtime-dependency-installation" not in arguments
    assert told.node_config == "partition-id=0"


@pytest.mark.parametrize("unit", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_a_unit_keeps_its_secrets_and_is_one_for_systemd(unit: Path, tmp_path: Path) -> None:
    service = Unit(unit)["Service"]
    assert (service["User"], service["UMask"], service["StateDirectoryMode"]) == ("hubbub", "0077", "0700")
    assert (service["LimitCORE"], service["MemorySwapMax"], service["Restart"]) == ("0", "0", "always")
    if shutil.which("systemd-analyze") is None:
        return
    text = unit.read_text().replace("/opt/hubbub/bin", str(Path(sys.executable).parent))
    (tmp_path / unit.name).write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert unit.name.partition("@")[0] not in done.stderr, done.stderr


def test_every_flag_of_flower_that_a_page_names_is_one_of_the_installed_version() -> None:
    with warnings.catch_warnings():
        # Of Flower's own use of typer.
        warnings.simplefilter("ignore", DeprecationWarning)
        from flwr.cli.app import app as flwr_app

        commands = get_command(flwr_app).commands  # type: ignore[attr-defined]
    seen = 0
    for page in PAGES:
        for line in re.findall(r"^\s*\$ ((?:flwr|flower-super\w+) .*)$", page.read_text().replace("\\\n", " "), re.MULTILINE):
            program, *words = shlex.split(line, comments=True)
            if program == "flwr":
                command = commands[words[0]]
                while hasattr(command, "commands"):
                    words = words[1:]
                    command = command.commands[words[0]]
                known = {name for parameter in command.params for name in parameter.opts}
            else:
                known = {name for action in parser_of(program)._actions for name in action.option_strings}
            for flag in (word for word in words if word.startswith("--")):
                assert flag in known, (page.name, line, flag)
                seen += 1
    assert seen > 15


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("openssl", "jq", "ssh-keygen"))), reason="needs openssl, jq and OpenSSH")
def test_the_commands_of_the_run_book_run_in_their_order(tmp_path: Path) -> None:
    text = PAGES[0].read_text()
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "run.toml").write_text(settings)
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    here = [line[2:] for line in lines if not line.startswith(("$ flwr ", "$ systemctl "))]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hubbub").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hubbub "$@"\n')
    (tmp_path / "bin" / "hubbub").chmod(0o700)
    script = "\n".join(["set -e -o pipefail", f"export PATH={tmp_path}/bin:$PATH", *here])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('Good "hubbub" signature for operator') == 2
    assert "runs/one is closed" in done.stdout
