"""A Flower deployment on this machine's loopback: SuperLink, SuperNodes and runs as processes of their own, behind TLS.

Everything that Flower writes lies in one folder, nothing is asked of the network, and no process is left behind: each carries
a mark by which it is found, and a reaper ends them when the deployment ends, when its time is up, or when the test is killed.
"""

import datetime
import http.client
import ipaddress
import json
import os
import re
import secrets
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import reaper

PrivateKey = ec.EllipticCurvePrivateKey

LOOPBACK = "127.0.0.1"
CONNECTION = "loopback"
# Below the ports from which Linux takes those of connections, so that a free one stays so until its process listens.
_PORTS = range(20000, 32000)
# Lines of each process's log that a failure shows.
_SHOWN = 60
# Seconds between two looks of a node for work, at some milliseconds of processor time each.
_POLL = "0.25"
# Seconds in which a node that was killed cannot come back, less those that it takes to start, and between two attempts.
_STILL_ALIVE, _RESTART_PAUSE = 35.0, 4.0
_MARK = "HUBBUB_TEST_DEPLOYMENT"
_PROCESS = "HUBBUB_TEST_PROCESS"


def _pem(key: PrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(name: str, key: PrivateKey, signer: PrivateKey, rules: Sequence[x509.ExtensionType]) -> bytes:
    """A certificate for an hour, PEM, signed in the name of the certificate authority."""
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for rule in rules:
        builder = builder.add_extension(rule, critical=isinstance(rule, x509.BasicConstraints | x509.KeyUsage))
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    signing = dict.fromkeys(("key_cert_sign", "crl_sign"), signs_certificates)
    unused = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only".split()
    return x509.KeyUsage(digital_signature=not signs_certificates, **signing, **dict.fromkeys(unused, False))


@dataclass(frozen=True)
class Certificates:
    """Files: a certificate authority of its own, and a server on loopback that it vouches for."""

    authority: Path
    server: Path
    key: Path

    @classmethod
    def made_in(cls, folder: Path) -> "Certificates":
        certificates = cls(folder / "ca.crt", folder / "server.pem", folder / "server.key")
        authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        rules = [x509.BasicConstraints(ca=True, path_length=0), _usage(signs_certificates=True)]
        certificates.authority.write_bytes(_certificate("authority", authority, authority, rules))
        purpose = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
        rules = [x509.BasicConstraints(ca=False, path_length=None), _usage(signs_certificates=False), purpose, names]
        certificates.server.write_bytes(_certificate("localhost", server, authority, rules))
        certificates.key.write_bytes(_pem(server, serialization.PrivateFormat.PKCS8))
        return certificates


def write_node_key(path: Path) -> None:
    """Make a node's key pair, P-384: the private one at ``path``, the public one beside it as ``.pub``."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(_pem(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def free_port() -> int:
    """A port on loopback that nobody listens on, out of those that the system gives nobody by itself."""
    while True:
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        with socket.socket() as tried:
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
            return port


class Deployment:
    """A SuperLink that admits registered nodes only, its nodes, and the runs on it; a context that leaves no process.

    Args:
        folder: Where everything is written: Flower's home, certificates, keys, logs.
        seconds: After so many all processes are ended, whatever is going on.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self.folder, self._seconds = folder, seconds
        for name in ("home", "keys", "logs"):
            (folder / name).mkdir(parents=True)
        self.certificates = Certificates.made_in(folder / "keys")
        self._token = uuid.uuid4().hex
        self.mark = f"{_MARK}={self._token}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        address = f"{LOOPBACK}:{self._port}"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\naddress = "{address}"\n'
        (folder / "home" / "config.toml").write_text(text + f'root-certificates = "{self.certificates.authority}"\n')

    def __enter__(self) -> "Deployment":
        self._deadline = time.monotonic() + self._seconds
        command = [sys.executable, reaper.__file__, self.mark, str(self._seconds)]
        # A session of its own: an interrupt from the keyboard must not end the reaper before the others.
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._reaper:
            self._reaper.communicate()
        reaper.end(self.mark)
        for process in self._processes.values():
            process.wait()
        if kind is not None:
            print(self.logs())  # noqa: T201 # pytest shows it with the failure

    def left(self) -> list[int]:
        """The deployment's processes that run."""
        return reaper.marked(self.mark)

    def start(self, name: str, program: str, *arguments: str) -> None:
        """Start one of this environment's programs under a name; its log begins anew."""
        if self._log_path(name).exists():
            earlier = len(list((self.folder / "logs").glob(f"{name}.log*")))
            self._log_path(name).rename(self.folder / "logs" / f"{name}.log.{earlier}")
        programs = Path(sys.executable).parent
        environment = {
            **os.environ,
            _MARK: self._token,
            _PROCESS: f"{self._token}/{name}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL,
            # A SuperNode finds the programs that it starts by name.
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "NO_PROXY": f"localhost,{LOOPBACK}",
            "OMP_NUM_THREADS": "1",
        }
        with self._log_path(name).open("wb") as log:
            command = [str(programs / program), *arguments]
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self._processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=environment, start_new_session=True, **streams
            )

    def start_superlink(self) -> None:
        tls = self.certificates
        self.start(
            "superlink",
            "flower-superlink",
            *("--host", LOOPBACK, "--port", str(self._port)),
            *("--ssl-ca-certfile", str(tls.authority), "--ssl-certfile", str(tls.server), "--ssl-keyfile", str(tls.key)),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        self.wait(self._healthy, "the SuperLink answers", runs="superlink")

    def register(self, names: Sequence[str]) -> dict[str, int]:
        """Make keys for nodes and register them, side by side; the ids that the SuperLink gives them."""
        for name in names:
            write_node_key(self.key(name))
            public = str(self.key(name).with_suffix(".pub"))
            self.start(f"register-{name}", "flwr", "supernode", "register", public, CONNECTION, "--format", "json")
        return {name: int(json.loads(self.finished(f"register-{name}"))["node-id"]) for name in names}

    def key(self, node: str) -> Path:
        """The file of a node's private key."""
        return self.folder / "keys" / node

    def start_node(self, name: str, /, **config: str | int) -> None:
        self.start(
            name,
            "flower-supernode",
            *("--superlink", f"{LOOPBACK}:{self._port}", "--root-certificates", str(self.certificates.authority)),
            *("--auth-supernode-private-key", str(self.key(name))),
            *("--host", LOOPBACK, "--port", str(free_port())),
            *("--node-config", _config(config)),
        )

    def start_many(self, program: Path, folder: Path, app: Path, deadline: float) -> None:
        """Start the process ``nodes`` that is all nodes whose keys were made."""
        self.start("nodes", "python", str(program), str(folder), str(self._port), str(app), str(deadline))

    def admitted(self, name: str) -> int:
        """Wait until a node was admitted; the id under which it was."""
        self.wait(lambda: self._id(name), f"{name} is admitted", runs=name)
        return int(self._id(name)[-1])

    def restart_node(self, name: str, /, **config: str | int) -> int:
        """Start a node that was just killed, again and again until it is admitted, as a supervisor does; its id.

        Until 60 seconds after a node's last heartbeat, of which one is sent every 17.5 to 22.5, the SuperLink takes it for
        alive, and refuses a second one with its key.
        """
        time.sleep(_STILL_ALIVE)
        while True:
            self.start_node(name, **config)
            self.wait(lambda: self._id(name) or self._processes[name].poll() is not None, f"{name} is admitted or refused")
            if self._id(name):
                return self.admitted(name)
            assert "Failed to activate SuperNode" in self.log(name), self.log(name)
            time.sleep(_RESTART_PAUSE)

    def start_run(self, name: str, app: Path, /, **config: str | float) -> None:
        """Submit an app with values for its configuration, and follow its log until its end."""
        self.start(name, "flwr", "run", str(app), CONNECTION, "--stream", "--run-config", _config(config))

    def kill(self, name: str) -> None:
        """SIGKILL to a process and to all that it started, as when its machine loses power."""
        reaper.end(f"{_PROCESS}={self._token}/{name}")
        self._processes[name].wait()

    def finished(self, name: str, *, well: bool = True) -> str:
        """Wait for the end of a process, which must end well or with an error of its own; what it wrote."""
        self.wait(lambda: self._processes[name].poll() is not None, f"{name} ends")
        code = self._processes[name].returncode
        assert code == 0 if well else code > 0, f"{name} ended with {code}:\n{self.log(name)}"
        return self.log(name)

    def wait(self, done: Callable[[], object], what: str, runs: str | None = None) -> None:
        """Wait until something is so, as long as time is left and the process ``runs`` goes on."""
        while not done():
            assert time.monotonic() < self._deadline, f"time was up before {what}"
            assert runs is None or self._processes[runs].poll() is None, f"{runs} ended before {what}"
            time.sleep(0.1)

    def _id(self, name: str) -> list[str]:
        return re.findall(r"SuperNode ID: (\d+)", self.log(name))

    def log(self, name: str) -> str:
        """What a process, and those that it started, wrote since its last start."""
        return self._log_path(name).read_text(errors="replace")

    def logs(self) -> str:
        tails = (path.read_text(errors="replace").splitlines()[-_SHOWN:] for path in self._log_paths())
        return "\n".join(f"--- {path.name}\n" + "\n".join(tail) for path, tail in zip(self._log_paths(), tails, strict=True))

    def _log_paths(self) -> list[Path]:
        return sorted((self.folder / "logs").iterdir())

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        connection = http.client.HTTPSConnection("localhost", self._port, context=context, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def _config(values: Mapping[str, str | float]) -> str:
    """``{"a_b": 1}`` as Flower's command line takes it: ``a-b=1``."""
    return " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in values.items())
