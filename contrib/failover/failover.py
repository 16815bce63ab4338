#!/usr/bin/env python3
"""Promotes the replica beside it when the primary is gone. A lock in PostgreSQL decides who may.

One of these runs beside each daemon of a log that may be primary:

    failover.py --database 'postgresql://failover@db/postgres?connect_timeout=3' \\
        --url http://127.0.0.1:9093 --stop 'systemctl kill -s KILL synrepl' [--secret-file FILE]

Whoever has the advisory lock may have a primary. The lock belongs to a connection: PostgreSQL releases it
when the connection ends, for whatever reason. Therefore

* who has the lock confirms it each second on that connection. If it is not confirmed within half of --grace
  seconds, or this program ends, its primary is stopped (--stop);
* who gets the lock waits for --grace seconds, and then promotes its replica: by then the former holder has
  stopped its primary, even if it can reach neither PostgreSQL nor the other daemons.

--stop must end the daemon within the other half of --grace. The promotion first asks the old primary to hand
over; if that one is away, it is forced, and facts that only the old primary had are left behind: they are
reported when it comes back, and `synrepl resync` there writes them to a file. A daemon that comes back is
fenced by its peers; nothing here makes a fenced daemon primary. PostgreSQL is the arbiter: while it is away,
there is no promotion, and after half of --grace no primary. Run it where that is what you want.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

STEP_SECONDS = 1.0
HEAD_START_SECONDS = 5.0
"""How long a replica leaves the lock to the primary's own program, when all of them start."""
PROMOTE_SECONDS = 120.0


class Agent:
    """The program, for one daemon."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._confirmed_at = time.monotonic()
        self._may_be_primary = False

    def run(self) -> None:
        """Take the lock, keep a primary while it is held, begin again."""
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            try:
                with psycopg.connect(self._options.database, autocommit=True) as connection:
                    self._wait_for_lock(connection)
                    self._lead(connection)
            except psycopg.Error as error:
                self._say(f"PostgreSQL: {' '.join(str(error).split())}")
            finally:
                self.stop_primary()
            time.sleep(STEP_SECONDS)

    def _watch(self) -> None:
        """End all if the lock was not confirmed in time: a query on a dead connection can take minutes."""
        while True:
            time.sleep(STEP_SECONDS / 4)
            if self._may_be_primary and time.monotonic() - self._confirmed_at > self._options.grace / 2:
                self._say("the lock is lost: PostgreSQL did not confirm it in time")
                self.stop_primary()
                os._exit(1)

    def _wait_for_lock(self, connection: "psycopg.Connection[Any]") -> None:
        began = time.monotonic()
        while True:
            role = self._status().get("role")
            is_late = time.monotonic() - began > HEAD_START_SECONDS
            # A fenced daemon waits for a person: another one is primary, or was.
            if role == "primary" or (role == "replica" and is_late):
                asked_at = time.monotonic()
                query = "SELECT pg_try_advisory_lock(%s)"
                if connection.execute(query, (self._options.lock,)).fetchone() == (True,):
                    self._confirmed_at = asked_at
                    return
            else:
                connection.execute("SELECT 1")
            time.sleep(STEP_SECONDS)

    def _lead(self, connection: "psycopg.Connection[Any]") -> None:
        """Hold the lock, with a primary after the time of grace, until the daemon is gone."""
        self._say(f"has the lock; promotes after {self._options.grace:g} s")
        begins_at = time.monotonic() + self._options.grace
        while True:
            self._confirm(connection)
            status = self._status()
            if not status:
                self._say("the daemon is gone: gives the lock back")
                return
            if status["role"] == "primary":
                self._may_be_primary = True
            elif time.monotonic() >= begins_at:
                if self._may_be_primary or status["role"] == "fenced":
                    self._say(f"the daemon is {status['role']}: gives the lock back")
                    self._may_be_primary = False
                    return
                self._promote(connection)
            time.sleep(STEP_SECONDS)

    def _confirm(self, connection: "psycopg.Connection[Any]") -> None:
        asked_at = time.monotonic()
        connection.execute("SELECT 1").fetchone()
        self._confirmed_at = asked_at

    def _promote(self, connection: "psycopg.Connection[Any]") -> None:
        """Promote in order, else by force; the lock is confirmed meanwhile, and in between."""
        self._may_be_primary = True  # from now on the daemon may become one at any moment
        for force in ((), ("--force", "--yes")):
            process = subprocess.Popen([*self._command("promote"), *force], stderr=subprocess.STDOUT)
            until = time.monotonic() + PROMOTE_SECONDS
            try:
                while process.poll() is None and time.monotonic() < until:
                    self._confirm(connection)
                    time.sleep(STEP_SECONDS / 10)
            finally:
                process.kill()
                process.wait()
            if self._status().get("role") == "primary":
                return

    def _status(self) -> dict[str, Any]:
        """The daemon's status; empty if it does not answer."""
        request = urllib.request.Request(f"{self._options.url}/v1/status")  # noqa: S310  # the operator's URL
        if self._options.secret_file:
            secret = Path(self._options.secret_file).read_text(encoding="utf-8").strip()
            request.add_header("Authorization", f"Bearer {secret}")
        try:
            with urllib.request.urlopen(request, timeout=self._options.grace / 4) as answer:  # noqa: S310
                found: dict[str, Any] = json.loads(answer.read())
        except (OSError, ValueError):
            return {}
        return found

    def _command(self, name: str) -> list[str]:
        secret = self._options.secret_file
        given = ["--secret-file", secret] if secret else []
        return [*shlex.split(self._options.synrepl), name, "--url", self._options.url, *given]

    def stop_primary(self) -> None:
        """Stop the daemon, if it may be a primary."""
        if self._may_be_primary:
            self._may_be_primary = False
            self._say("stops the daemon, which may be primary")
            subprocess.run(shlex.split(self._options.stop), check=False)

    def _say(self, text: str) -> None:
        print(f"{self._options.url}: {text}", flush=True)


def main() -> None:
    """Run until a signal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", required=True, help="the arbiter: a connection string of PostgreSQL")
    parser.add_argument("--url", required=True, help="the HTTP address of the daemon beside this program")
    parser.add_argument("--stop", required=True, help="the command that ends the daemon at once")
    parser.add_argument("--secret-file", default="", help="the file with the secret of the daemon")
    parser.add_argument("--lock", type=int, default=7_396_711, help="the number of the lock, one for a log")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds, see above [20]")
    parser.add_argument("--synrepl", default="synrepl", help="the command synrepl")
    agent = Agent(parser.parse_args())

    def end(number: int, frame: FrameType | None) -> None:
        agent.stop_primary()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    agent.run()


if __name__ == "__main__":
    main()
