"""Shows a deployment that loses its primary: a real homeserver, a primary, a replica, a promotion."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.interop.client import Client  # noqa: E402  # after the path
from tests.interop.homeserver import Homeserver  # noqa: E402
from tests.servers.ports import free_port  # noqa: E402

SERVER_NAME: Final = "story.example"
SECONDS: Final = 60.0
STEP_SECONDS: Final = 0.2


class Daemon:
    """A daemon with a directory of its own, at ports that stay the same over restarts."""

    def __init__(self, folder: Path, name: str, secret: Path, **settings: Any) -> None:
        self.name = name
        self.secret = secret
        self.folder = folder / name
        self.folder.mkdir()
        port, http = free_port(), free_port()
        self.native, self.url = f"tcp:127.0.0.1:{port}", f"http://127.0.0.1:{http}"
        self.config = self.folder / "synrepl.yaml"
        self._settings = {
            "listen": [f"tcp:{port}:interface=127.0.0.1"],
            "http": f"tcp:{http}:interface=127.0.0.1",
            "secret_file": str(secret),
            "database": "sqlite:synrepl.db",
            **settings,
        }
        self.config.write_text(yaml.safe_dump(self._settings))
        self._process: subprocess.Popen[bytes] | None = None

    def list_upstream(self, upstream: str) -> None:
        """Put an upstream into the settings: the daemon shows its secret to nobody else."""
        print(f"$ echo 'upstream: {upstream}' >>{self.name}/synrepl.yaml")
        self.config.write_text(yaml.safe_dump(self._settings | {"upstream": upstream}))

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        command = synrepl("serve", "--config", str(self.config), "--log-file", "synrepl.log")
        print(f"$ cd {self.name}; synrepl serve --config synrepl.yaml &")
        self._process = subprocess.Popen(command, cwd=self.folder, env=environment())
        wait_for(lambda: self.status()["role"], f"{self.name} to answer")

    def kill(self) -> None:
        """Kill the daemon, as a power failure would."""
        if self._process is not None:
            print(f"$ kill -9 {self._process.pid}   # {self.name}")
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop the daemon in an orderly way, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None

    def status(self) -> dict[str, Any]:
        """Return what `synrepl status` prints; if the daemon does not answer, a status with an error."""
        command = synrepl(*self.options("status"), "--json")
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {"role": "", "errors": [""]}

    def options(self, command: str) -> list[str]:
        """Return the arguments of a `synrepl` command for this daemon."""
        return [command, "--url", self.url, "--secret-file", str(self.secret)]


def environment() -> dict[str, str]:
    """Return the environment of commands, in which this checkout comes first on the PYTHONPATH."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def synrepl(*arguments: str) -> list[str]:
    """Return the command line that runs `synrepl` of this checkout with these arguments."""
    return [sys.executable, "-m", "synrepl", *arguments]


def run(*arguments: str) -> None:
    """Run a command, and show it with its output. Raises `SystemExit` if it fails."""
    print(f"$ synrepl {shlex.join(arguments)}", flush=True)
    done = subprocess.run(synrepl(*arguments), env=environment(), check=False)
    if done.returncode:
        raise SystemExit(f"synrepl {arguments[0]} has failed with exit code {done.returncode}")


def wait_for(condition: Any, what: str) -> Any:
    """Return the result of `condition` once it is true. Raises `SystemExit` after `SECONDS`."""
    until = time.monotonic() + SECONDS
    while not (found := condition()):
        if time.monotonic() > until:
            raise SystemExit(f"gave up after {SECONDS:g} s of waiting for {what}")
        time.sleep(STEP_SECONDS)
    return found


def wait_for_event(daemon: Daemon, event: str) -> None:
    """Wait until a daemon's changelog has this event, as `synrepl tail` shows it."""
    command = synrepl("tail", daemon.url, "--secret-file", str(daemon.secret), "--stream", "events")
    command += ["--from", "earliest"]
    print(
        f"$ synrepl tail {daemon.url} --stream events --from earliest   # until it shows {event}", flush=True
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as tail:
        assert tail.stdout is not None
        timer = threading.Timer(SECONDS, tail.terminate)
        timer.start()
        try:
            for line in tail.stdout:
                if event in line:
                    print(line.rstrip())
                    return
        finally:
            timer.cancel()
            tail.terminate()
    raise SystemExit(f"{daemon.name} did not show {event} within {SECONDS:g} s")


def say(text: str) -> None:
    """Print a heading of the story."""
    print(f"\n# {text}", flush=True)


def tell(stack: ExitStack, folder: Path) -> None:
    """Show the story, step by step."""
    say(f"A homeserver with two workers, its Redis and its PostgreSQL: {SERVER_NAME}")
    homeserver = stack.enter_context(Homeserver(SERVER_NAME))
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(homeserver.secret)
    shared = {"redis": homeserver.redis.url, "instance_map": homeserver.instance_map}
    primary = Daemon(folder, "primary", secret, server_name=SERVER_NAME, instance_name="synrepl", **shared)
    replica = Daemon(
        folder,
        "replica",
        secret,
        upstream=primary.native,
        instance_name="synrepl",
        replica_name="replica",
        **shared,
    )
    for daemon in (primary, replica):
        stack.callback(daemon.stop)

    say("A primary on the homeserver's Redis, and a replica of the primary")
    primary.start()
    replica.start()
    wait_for(lambda: not replica.status()["errors"], "the replica to have its copy")
    run(*primary.options("replicas"))

    say("A message is sent; the replica has it")
    ada = Client.register(homeserver, "ada")
    room = ada.create_room(preset="public_chat", name="Story")
    wait_for_event(replica, ada.send(room, "before"))

    say("The primary is lost, and the replica takes over")
    primary.kill()
    run(*replica.options("promote"), "--force")

    say("Messages go on")
    wait_for_event(replica, ada.send(room, "after"))

    say("The former primary returns, is fenced, and becomes a replica")
    primary.start()
    wait_for(lambda: primary.status()["role"] == "fenced", "the former primary to be fenced")
    primary.stop()
    primary.list_upstream(replica.native)
    primary.start()

    def following() -> str:
        upstream = primary.status().get("upstream") or {}
        return str(upstream.get("state")) if upstream.get("state") in ("live", "stopped") else ""

    if wait_for(following, "the former primary to follow") == "stopped":
        run(*primary.options("resync"), "--yes")
    wait_for_event(primary, ada.send(room, "together"))
    run(*replica.options("replicas"))
    wait_for(lambda: not (replica.status()["errors"] or primary.status()["errors"]), "no errors")
    say("Nothing was lost, and no daemon reports an error.")


def main() -> int:
    """Show the story; exit code 0 if it ends well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synrepl-story-") as folder, ExitStack() as stack:
        tell(stack, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
