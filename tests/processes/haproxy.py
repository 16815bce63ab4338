"""A real HAProxy with the configuration of contrib/haproxy, for daemons of a test, if the machine has one."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.servers.proxies import find_program

HAPROXY: Final = find_program("haproxy")
CONFIGURATION: Final = Path(__file__).parents[2] / "contrib/haproxy/haproxy.cfg"


class Section(NamedTuple):
    """A `listen` section: the port where it listens, and the servers, the first of which is no backup.

    `checked` are the ports that are asked, if these are others.
    """

    port: int
    servers: Sequence[int]
    checked: Sequence[int] = ()


@contextmanager
def haproxy(folder: Path, sections: Mapping[str, Section]) -> Iterator[None]:
    """Run it with these sections of the configuration, by their names."""
    head, *rest = CONFIGURATION.read_text().replace("inter 1s", "inter 200ms").split("\nlisten ")
    text = head
    for one in rest:
        name, *lines = one.splitlines()
        if name not in sections:
            continue
        port, servers, checked = sections[name]
        kept = [line for line in lines if not line.startswith(("    server ", "    bind "))]
        added = [f"    bind 127.0.0.1:{port}"]
        for number, server in enumerate(servers):
            asked = f" port {checked[number]}" if checked else ""
            backup = " backup" if number else ""
            added.append(f"    server n{number} 127.0.0.1:{server} check{asked}{backup}")
        text += "\n".join([f"\nlisten {name}", *kept, *added, ""])
    path = folder / "haproxy.cfg"
    path.write_text(text)
    running = subprocess.Popen([str(HAPROXY), "-f", str(path)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait()
