"""Provokes every refusal of a replica with real daemons, and writes what an operator sees into the manual.

It rewrites the part of docs/howto/replicas.md between its marks. With codes as arguments it only prints
these refusals. With `--check` it compares the refusals with the page, and writes nothing.
"""

import argparse
import json
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.lib.printed_commands import accepts  # noqa: E402  # after the path
from scripts.staging import QUICK, Stage, ask, restored  # noqa: E402
from synrepl.http_api.routes import STATUS  # noqa: E402
from synrepl.replicas.error_codes import REFUSALS  # noqa: E402
from synrepl.replicas.relay.leases import MAX_LEASES  # noqa: E402
from synrepl.replicas.routes import ADD_LEASE, PROMOTE  # noqa: E402
from synrepl.streams.digest import EMPTY  # noqa: E402
from tests.service.processes import Daemon  # noqa: E402

MANUAL: Final = ROOT / "docs" / "howto" / "replicas.md"
BEGIN: Final = "<!-- refusals: written by scripts/docs_refusals.py -->"
END: Final = "<!-- end of refusals -->"
CHECKED: Final = "<!-- not run: `scripts/docs_refusals.py --check` compares it -->"
SECONDS: Final = 600

Seen = list[str]


class Told:
    """A refusal on the page: its cause, its effect and remedy (`then`), and the function that provokes it."""

    def __init__(self, how: str, then: str, provoke: Callable[[Stage], Seen]) -> None:
        self.how = how
        self.then = then
        self.provoke = provoke


def seen(daemon: Daemon, code: str, stage: Stage, is_so: Callable[[dict[str, Any]], Any] = bool) -> Seen:
    """Return the lines of the replica's log and status that show the refusal `code`."""
    daemon.wait_for(f"the upstream refuses: {code}")
    status = stage.wait_until(daemon, is_so, f"status after {code}")
    line = next(line for line in daemon.lines if f"the upstream refuses: {code}" in line)
    shown = [
        f"log      {line.partition('] ')[2]}",
        f"status   state: {status['state']}; upstream: {status['upstream']['state']}",
    ]
    return shown + [f"         error: {one['what']}" for one in status["errors"]]


def is_upstream(*states: str) -> Callable[[dict[str, Any]], bool]:
    """Return a condition on a status: `upstream` is in one of these states."""
    return lambda status: status["upstream"]["state"] in states


def pair(stage: Stage, count: int = 200, *options: str) -> tuple[Daemon, Daemon]:
    """Start a primary with `count` facts, and a replica that has all of them."""
    berlin = stage.start("berlin", *options)
    stage.append(berlin, count)
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK)
    stage.wait_live(paris)
    return berlin, paris


def trimmed(stage: Stage) -> Seen:
    """The replica is away for longer than its lease."""
    berlin, paris = pair(stage, 200, "--lease-seconds", "1", "--retain-seconds", "1")
    paris.terminate()
    stage.append(berlin, 300)
    stage.wait_until(berlin, lambda status: status["trimmed_upto"] > 200, "trimming")
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK, at=paris)
    return seen(paris, "trimmed", stage, is_upstream("live"))


def ahead(stage: Stage) -> Seen:
    """The primary was restored from an older copy."""
    paris = restored(stage)
    return seen(paris, "ahead", stage, is_upstream("stopped"))


def fork(stage: Stage) -> Seen:
    """The old primary comes back as a replica of the new one."""
    berlin, paris = pair(stage)
    paris.terminate()
    stage.append(berlin, 7)
    berlin.kill()
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK, at=paris)
    ask(paris.url, PROMOTE.request(), {"force": True})
    stage.append(paris, 3)
    berlin = stage.replica("berlin", f"tcp:{paris.follow}", *QUICK)
    return seen(berlin, "fork", stage, is_upstream("stopped"))


def other_epoch(stage: Stage) -> Seen:
    """The replica knows of a promotion that its upstream does not know."""
    berlin, paris = pair(stage)
    rome = stage.replica("rome", f"tcp:{paris.follow}", *QUICK)
    stage.wait_live(rome)
    berlin.kill()
    ask(paris.url, PROMOTE.request(), {"force": True})
    stage.append(paris, 3)
    stage.wait_until(rome, lambda status: status["epoch"] == 2, "the new epoch")
    paris.kill()
    rome.terminate()
    berlin = stage.start("berlin")
    rome = stage.replica("rome", f"tcp:{berlin.follow}", *QUICK)
    return seen(rome, "other_epoch", stage, is_upstream("refused"))


def other_history(stage: Stage) -> Seen:
    """The replica's `--upstream` is a daemon with another log."""
    _, paris = pair(stage)
    other = stage.start("hamburg")
    stage.append(other, 500)
    paris.terminate()
    paris = stage.replica("paris", f"tcp:{other.follow}", *QUICK)
    return seen(paris, "other_history", stage, is_upstream("stopped"))


def duplicate(stage: Stage) -> Seen:
    """The replica's directory was copied, and both daemons run."""
    berlin, paris = pair(stage)
    paris.terminate()
    shutil.copytree(stage.folder / "paris", stage.folder / "copy")
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK)
    stage.wait_live(paris)
    copy = stage.replica("copy", f"tcp:{berlin.follow}", *QUICK)
    return seen(copy, "duplicate", stage, is_upstream("refused"))


def unknown(stage: Stage) -> Seen:
    """An operator dropped the replica's lease."""
    berlin, paris = pair(stage)
    stage.run("leases", "drop", "paris", "--url", berlin.url)
    paris.terminate()
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK)
    return seen(paris, "unknown", stage, is_upstream("refused"))


def not_ready(stage: Stage) -> Seen:
    """The upstream is a replica that is still joining."""
    berlin = stage.start("berlin")
    stage.append(berlin, 60_000)
    proxy = stage.proxy(berlin.follow, bytes_a_second=300_000)
    paris = stage.replica("paris", f"tcp:{proxy.address}", *QUICK)
    stage.wait_until(paris, is_upstream("snapshot"), "joining")
    rome = stage.replica("rome", f"tcp:{paris.follow}", *QUICK)
    return seen(rome, "not_ready", stage, is_upstream("refused"))


def read_only(stage: Stage) -> Seen:
    """The upstream is fenced, and names the primary."""
    berlin, paris = pair(stage)
    ask(paris.url, PROMOTE.request(), {})
    stage.wait_until(berlin, lambda status: status["role"] == "fenced", "fenced")
    rome = stage.replica("rome", f"tcp:{berlin.follow}", *QUICK)
    return seen(rome, "read_only", stage, is_upstream("live"))


def no_rights(stage: Stage) -> Seen:
    """The replica has another secret than the primary."""
    for name, secret in (("berlin", "one"), ("paris", "another")):
        path = stage.folder / f"{name}.secret"
        path.write_text(f"{secret}\n")
        path.chmod(0o600)
    berlin = stage.start("berlin", "--secret-file", str(stage.folder / "berlin.secret"))
    options = (*QUICK, "--secret-file", str(stage.folder / "paris.secret"))
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *options)
    stage.secret = "another"
    return seen(paris, "no_rights", stage, is_upstream("refused"))


def filtered(stage: Stage) -> Seen:
    """The upstream has only some streams, and the replica requests all."""
    berlin = stage.start("berlin")
    stage.append(berlin, 20)
    paris = stage.replica("paris", f"tcp:{berlin.follow}", "--upstream-streams", "receipts", *QUICK)
    stage.wait_live(paris)
    rome = stage.replica("rome", f"tcp:{paris.follow}", *QUICK)
    return seen(rome, "filtered", stage, is_upstream("refused"))


def bad_ack(stage: Stage) -> Seen:
    """Sent by hand: no synrepl daemon does this."""
    berlin = stage.start("berlin")
    stage.append(berlin, 20)
    history = ask(berlin.url, STATUS.request())["history"]
    position = {"epoch": 1, "serial": 0, "digest": EMPTY}
    return by_hand(
        berlin,
        'HELLO {"uuid":"u1","name":"paris","version":3}',
        f"SUBSCRIBE {json.dumps({'history': history, 'position': position})}",
        "ACK 1 1000000 0",
    )


def too_many(stage: Stage) -> Seen:
    """All leases were made for replicas that never connected."""
    berlin = stage.start("berlin")
    stage.append(berlin, 20)
    for number in range(MAX_LEASES):
        ask(berlin.url, ADD_LEASE.request(), {"name": f"replica{number}"})
    paris = stage.replica("paris", f"tcp:{berlin.follow}", *QUICK)
    return seen(paris, "too_many", stage, is_upstream("refused"))


def bad_name(stage: Stage) -> Seen:
    """Sent by hand: no synrepl daemon does this."""
    return by_hand(
        stage.start("berlin"),
        'HELLO {"uuid":"u1","name":"two words","version":3}',
        "JOIN {}",
    )


def version(stage: Stage) -> Seen:
    """Sent by hand, as release 26.11 does."""
    return by_hand(stage.start("berlin"), 'HELLO {"uuid":"u1","name":"paris","nonce":"n1"}')


def by_hand(daemon: Daemon, *lines: str) -> Seen:
    """Send these lines to the daemon, and return the line of its refusal."""
    host, port = daemon.follow.rsplit(":", 1)
    heard = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for line in lines:
            if b"\nREFUSED" in heard:
                break
            connection.sendall(line.encode() + b"\n")
            while b"\nREFUSED" not in heard and ANSWERS[line.split()[0]] not in heard:
                data = connection.recv(65_536)
                if not data:
                    raise RuntimeError(f"the daemon closed the connection without REFUSED, after {heard!r}")
                heard += data
        refused = next(line for line in heard.split(b"\n") if line.startswith(b"REFUSED"))
    return [f"wire     {refused.decode()}"]


ANSWERS: Final = {
    "HELLO": b"WELCOME",
    "SUBSCRIBE": b"HEARTBEAT",
    "ACK": b"REFUSED",
    "JOIN": b"REFUSED",
}
"""For each command, the daemon's answer that `by_hand` waits for."""

CASES: Final[dict[str, Told]] = {
    "trimmed": Told(
        "It was away for longer than its lease lasts, or lacked more than the lease holds.",
        "The replica joins again by itself. It serves its old copy meanwhile, with the state `stale`"
        " when that is too old.",
        trimmed,
    ),
    "ahead": Told(
        "The primary was restored from an older copy, or its disk lost the last writes.",
        "The replica stops following (state `stopped`), and refuses its readers, as its facts may be lost."
        " Decide which history is right: promote this replica by force, and let the old primary rejoin; or"
        " `synrepl resync` this one.",
        ahead,
    ),
    "fork": Told(
        "An old primary comes back with facts that the primary promoted by force never had.",
        "The daemon stops following (state `stopped`), and refuses its readers, as its facts may be lost."
        " `synrepl resync` writes the facts that only this daemon has to a file, and prints its path.",
        fork,
    ),
    "other_history": Told(
        "Its `--upstream` is a daemon with another log.",
        "The replica stops following (state `stopped`), and refuses its readers. Most likely `--upstream` is"
        " wrong: restart the replica with the right one. If it is right, `synrepl resync`.",
        other_history,
    ),
    "other_epoch": Told(
        "It knows of a promotion that its upstream, a former primary, has not received yet.",
        "The upstream asks the replica for the primary's address, and is fenced if that primary"
        " confirms it. Otherwise the status of the upstream shows the later epoch for five minutes."
        " The replica retries until it learns where the primary is.",
        other_epoch,
    ),
    "read_only": Told(
        "Its upstream is fenced.",
        "The replica follows the primary that the upstream names, by itself; if the upstream names none, the"
        " replica retries.",
        read_only,
    ),
    "not_ready": Told(
        "Its upstream is a replica without a complete copy.",
        "The replica retries, and is served once the upstream's copy is complete.",
        not_ready,
    ),
    "duplicate": Told(
        "The directory of a replica was copied, and both run; or the primary has not detected yet"
        " that the old connection is dead.",
        "The replica retries. If there are two copies, stop one, and start it again with an empty database.",
        duplicate,
    ),
    "unknown": Told(
        "`synrepl leases drop` dropped it.",
        "The replica retries at long intervals. `synrepl leases add NAME` admits it again.",
        unknown,
    ),
    "no_rights": Told(
        "Its `--secret-file` is missing or has another secret, or its line in the primary's"
        " `--keys-file` is missing or lacks a right.",
        "The replica retries at long intervals. Correct the secret, and restart the replica to retry"
        " at once.",
        no_rights,
    ),
    "filtered": Told(
        "Its upstream is a replica with a filter, and it requests more.",
        "The replica retries at long intervals. Give it another upstream, or a narrower filter.",
        filtered,
    ),
    "bad_ack": Told(
        "This is a bug, or the peer is not a replica. synrepl daemons do not do this; the output below is"
        " that of a handwritten client.",
        "The replica reconnects.",
        bad_ack,
    ),
    "too_many": Told(
        "Leases exist for replicas that never came, or for invented names.",
        "The replica retries, and is served once a lease has ended. `synrepl leases list` shows all"
        " leases; end unused ones with `synrepl leases drop NAME`.",
        too_many,
    ),
    "bad_name": Told(
        "Its name has a space, control characters or more than 255 characters, or its uuid or address"
        " is invalid. The output below is that of a handwritten client.",
        "The replica retries at long intervals. Give it another name (`--replica-name`), or another"
        " address (`--advertise`).",
        bad_name,
    ),
    "version": Told(
        "It is of release 26.11 or before, whose handshake is another. The output below is that of a"
        " handwritten client.",
        "The replica retries at long intervals. Install the same release at both ends, at the upstream"
        " first.",
        version,
    ),
}


def told(code: str) -> str:
    """Return the section of the manual for this refusal, with output of running daemons."""
    case, kind = CASES[code], REFUSALS[code]
    with Stage() as stage:
        lines = [_plain(line, str(stage.folder)) for line in case.provoke(stage)]
    shown = "\n".join(lines)
    retry = "Retryable" if kind.retryable else "Not retryable"
    means = kind.means[0].upper() + kind.means[1:]
    return (
        f"### `{code}`\n\n{means}. {retry}. {case.how}\n\n{CHECKED}\n\n```text\n{shown}\n```\n\n{case.then}\n"
    )


def _plain(line: str, folder: str) -> str:
    line = line.replace(folder, "/var/lib/synrepl")
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-([0-9a-f]{8})[0-9a-f]{4}", r"\1...", line)
    line = re.sub(r"tcp:127\.0\.0\.1:\d+", "tcp:berlin:9092", line)
    return re.sub(r"http://127\.0\.0\.1:\d+", "http://berlin:9093", line)


def main() -> int:
    """Provoke all refusals, or those that are named; print, write or compare their sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", nargs="*", metavar="CODE", help="only these, and write nothing")
    parser.add_argument("--check", action="store_true", help="compare with the page, and write nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(SECONDS)
    parts = []
    for code in options.codes or CASES:
        parts.append(told(code))
        print(parts[-1], flush=True)
    if options.check:
        text = MANUAL.read_text("utf-8")
        differing = [part.split("`")[1] for part in parts if not _is_in(part, text)]
        name = MANUAL.relative_to(ROOT)
        print(f"{name} is out of date: {', '.join(differing)}" if differing else f"{name} is up to date")
        return 1 if differing else 0
    if not options.codes:
        text = MANUAL.read_text("utf-8")
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        MANUAL.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}", "utf-8")
    return 0


def _is_in(part: str, text: str) -> bool:
    """Whether the page has this part, apart from identifiers."""
    heading = part.partition("\n")[0]
    shown = re.search(rf"^{re.escape(heading)}\n.*?(?=^### |^<!-- end|\Z)", text, re.MULTILINE | re.DOTALL)
    return shown is not None and accepts(shown[0].rstrip(), part.rstrip(), is_whole=True)


def _too_late(*_: object) -> None:
    raise TimeoutError(f"the refusals were not provoked within {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
