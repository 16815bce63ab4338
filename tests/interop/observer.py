"""Our daemon on the Redis of a homeserver: it listens, and tells what it is configured to write."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

from tests.interop.harness import Daemon, Program, tail
from tests.interop.homeserver import Homeserver
from tests.interop.recorder import Fact, canonical


class Observer(Daemon):
    """The daemon, an instance of this `name`. `more` are further settings; `http_port`: its own, if given."""

    def __init__(
        self,
        folder: Path,
        homeserver: Homeserver,
        *,
        name: str = "observer",
        http_port: int | None = None,
        **more: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.secret_file = folder / "secret"
        self.secret_file.touch(0o600)
        self.secret_file.write_text(homeserver.secret)
        self._file = folder / "synrepl.yaml"
        self._settings = {
            **({} if "resp" in more else {"redis": homeserver.redis.url}),
            "instance_name": name,
            "secret_file": str(self.secret_file),
            "instance_map": homeserver.instance_map,
            **more,
        }
        self.list_upstream()
        self.server_name = homeserver.server_name
        super().__init__(
            folder, "--config", str(self._file), server_name=self.server_name, http_port=http_port
        )
        self.secret = homeserver.secret

    def list_upstream(self, *upstreams: str) -> None:
        """Write the settings, with these upstreams first: the daemon shows its secret to nobody else."""
        more = {"upstream": list(dict.fromkeys([*upstreams, *self._settings.get("upstream", [])]))}
        self._file.write_text(
            json.dumps(self._settings | (more if more["upstream"] else {}))
        )  # which is YAML

    def get(self, path: str) -> str:
        """What it answers."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.secret}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def changelog(self) -> list[Fact]:
        """All of it."""
        facts = [json.loads(line) for line in self.get("/v1/changelog?since=0").splitlines()]
        return [
            Fact(one["stream"], one["writer"], one["token"], tuple(map(canonical, one["rows"])))
            for one in facts
        ]

    def rows(self, stream: str, writer: str) -> list[Fact]:
        """The rows of a writer, from the beginning."""
        facts, start = [], 0
        while True:
            page = json.loads(self.get(f"/v1/streams/{stream}/rows?writer={writer}&from={start}"))
            facts += [Fact(stream, writer, token, (canonical(row),)) for token, row in page["updates"]]
            start = page["upto"]
            if not page["limited"]:
                return facts

    def metric(self, name: str) -> float:
        """The sum of this metric over its labels."""
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, f"there is no metric {name}"
        return sum(map(float, found))

    def tail(self, dialect: str) -> Program:
        """A follower over TCP, in a process of its own."""
        options = ["--dialect", dialect, "--http", self.url, "--secret-file", str(self.secret_file)]
        return tail(self.port, *options, server_name=self.server_name)
