"""Real Redis servers on loopback, with certificates and users where a test wants them."""

import atexit
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from kvist.app.clock import SystemClock
from kvist.tiers.redis import RedisTier
from kvist.tiers.redis_settings import RedisServer, RedisSettings

ATTEMPTS = 5
QUIET = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "notice", "--logfile", ""]


def binary(name: str, path: str | None = None) -> str:
    """Where a program is; a missing one fails with how to install it."""
    found = shutil.which(name, path=path)
    if found is None:
        package = {"redis-server": "redis-server", "openssl": "openssl"}[name]
        raise RuntimeError(f"{name} is missing; install it (on Debian and Ubuntu: apt-get install {package})")
    return found


def free_port() -> int:
    """A port on loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RedisProcess:
    """A server that keeps nothing on disk; use it in a `with`.

    Attributes:
        port: on loopback; 0 where TLS or a Unix socket is all there is.
    """

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        """Takes options as on the server's command line; does not start yet."""
        self.folder = folder
        self.port = free_port() if port is None else port
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        for _ in range(ATTEMPTS):
            self._process = subprocess.Popen(
                [binary("redis-server"), "--port", str(self.port), "--dir", str(self.folder), *QUIET, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert self._process.stdout is not None
            said = []
            for line in self._process.stdout:
                said.append(line)
                if "eady to accept connections" in line:
                    return
            self.stop()
            if not any("already in use" in line for line in said):
                break
        raise AssertionError(f"redis-server did not start: {''.join(said[-20:])}")

    def stop(self) -> None:
        """Kills it at once, as a crash would; may be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def pause(self) -> None:
        """Lets it hang: connections stay, nothing is answered."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)

    def settings(self, **changes: object) -> RedisSettings:
        """To reach it over plain TCP."""
        return RedisSettings(server=RedisServer(port=self.port), **changes)

    def tier(self, **changes: object) -> RedisTier:
        """A tier over it."""
        return RedisTier("pool", self.settings(**changes), SystemClock())

    def ask(self, *words: object) -> object:
        """What it answers to one command, by the usual client."""
        with Redis(port=self.port, protocol=2) as client:
            return client.execute_command(*words)

    def __enter__(self) -> "RedisProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@cache
def shared_server() -> RedisProcess:
    """One server for all tests of this process that only want one; it ends with the process."""
    folder = TemporaryDirectory(prefix="kvist-redis-")
    server = RedisProcess(Path(folder.name))
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server


def sign(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A new certificate and its key, by openssl."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate), *more]
    subprocess.run([binary("openssl"), *words], check=True, capture_output=True)
    return certificate, key


class Certificates:
    """An authority that vouches for a server on 127.0.0.1 and for a client.

    Attributes:
        authority, server, client: certificate and key of each.
    """

    def __init__(self, folder: Path) -> None:
        """Makes all of them."""
        self.authority = sign(folder, "authority")
        by: Sequence[str] = ["-CA", str(self.authority[0]), "-CAkey", str(self.authority[1])]
        no_authority = ["-addext", "basicConstraints=critical,CA:FALSE"]
        self.server = sign(folder, "server", *by, *no_authority, "-addext", "subjectAltName=IP:127.0.0.1")
        self.client = sign(folder, "client", *by, *no_authority)

    def options(self, port: int) -> list[str]:
        """What a server needs to speak TLS on a port, and to ask clients for theirs."""
        certificate, key = map(str, self.server)
        authority = str(self.authority[0])
        own = ["--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key]
        return [*own, "--tls-ca-cert-file", authority]
