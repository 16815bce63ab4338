"""Makes the manual's pictures of the status page, from real daemons in the states that the manual describes.

Writes docs/images/status-*.png. Needs a Chromium: on the PATH, or named by SYNREPL_CHROMIUM.
"""

import argparse
import hashlib
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.chromium import Chromium, find_chromium  # noqa: E402  # after the path
from scripts.staging import Stage, ask, restored  # noqa: E402
from synrepl.files.routes import PUT_FILE  # noqa: E402
from synrepl.http_api.routes import APPEND  # noqa: E402
from synrepl.replicas.routes import ADD_LEASE, PROMOTE  # noqa: E402
from tests.service.processes import Daemon, Process  # noqa: E402

IMAGES: Final = ROOT / "docs" / "images"
DESKTOP: Final = (1200, 900)
PHONE: Final = (390, 844)
SECONDS: Final = 300
"""The time limit for all pictures."""


def primary(stage: Stage) -> Daemon:
    """A primary with several replicas, of which one is behind and one is lost."""
    daemon = stage.start("berlin")
    stage.append(daemon, 4_000)
    stage.append(daemon, 900, stream="receipts", writer="worker1")
    stage.append(daemon, 300, stream="receipts", writer="worker2")
    stage.append(daemon, 120, stream="device_lists")
    _put_files(daemon)
    paris = stage.replica("paris", f"tcp:{daemon.follow}")
    stage.wait_live(paris)
    madrid = stage.replica("madrid", daemon.url)
    oslo = stage.replica("oslo", f"tcp:{daemon.follow}")
    laptop = stage.replica("laptop", f"tcp:{daemon.follow}", "--upstream-streams", "receipts", "--anonymous")
    for replica in (madrid, oslo, laptop):
        stage.wait_live(replica)
    ask(daemon.url, ADD_LEASE.request(), {"name": "lisbon"})
    laptop.terminate()
    tail = ("-m", "synrepl", "tail", daemon.follow, "--http", daemon.url, "--name", "pusher1")
    stage.daemons["pusher1"] = follower = Process(*tail, cwd=stage.folder)  # type: ignore[assignment]
    follower.wait_for('"position"')
    stage.stop(oslo)
    for _ in range(10):
        stage.append(daemon, 12, stream="receipts", writer="worker1")
    stage.append(daemon, 3)

    def is_so(status: dict) -> bool:  # type: ignore[type-arg]
        states = {one["name"]: one["state"] for one in status["replicas"]}
        held = {one["name"]: one["held_bytes"] for one in status["leases"]}
        return bool(
            (states["oslo"], states["paris"], states["laptop"]) == ("behind", "live", "lost")
            and status["warnings"] == ["1 replica lost, 1 behind"]
            and held["oslo"]
        )

    stage.wait_until(daemon, is_so, "a replica that is behind")
    return daemon


def behind(stage: Stage) -> Daemon:
    """A replica that was away, and catches up over a slow line."""
    daemon = stage.start("berlin")
    stage.append(daemon, 2_000)
    proxy = stage.proxy(daemon.follow)
    paris = stage.replica("paris", f"tcp:{proxy.address}")
    stage.wait_live(paris)
    paris.terminate()
    stage.append(daemon, 60_000)
    proxy.bytes_a_second = 700_000
    paris = stage.replica("paris", f"tcp:{proxy.address}", "--stale-seconds", "1", at=paris)
    stage.wait_until(
        paris,
        lambda status: (
            status["upstream"]["state"] == "catching up"
            and status["state"] == "stale"
            and status["serial"] > 12_000
        ),
        "catching up",
    )
    return paris


def joining(stage: Stage) -> Daemon:
    """A replica that receives its first copy over a slow line."""
    daemon = stage.start("berlin")
    stage.append(daemon, 60_000)
    proxy = stage.proxy(daemon.follow, bytes_a_second=900_000)
    paris = stage.replica("paris", f"tcp:{proxy.address}")
    stage.wait_until(
        paris,
        lambda status: (status["upstream"]["join"] or {"done": 0})["done"] > 20_000,
        "joining",
    )
    return paris


def fenced(stage: Stage) -> Daemon:
    """A primary whose replica was promoted by force."""
    daemon = stage.start("berlin")
    stage.append(daemon, 300)
    paris = stage.replica("paris", f"tcp:{daemon.follow}")
    stage.wait_live(paris)
    daemon = stage.list_as_primary("berlin", daemon, paris)
    stage.stop(paris)
    stage.append(daemon, 7)
    stage.go_on(paris)
    ask(paris.url, PROMOTE.request(), {"force": True})
    stage.wait_until(daemon, lambda status: status["state"] == "fenced", "fenced")
    return daemon


def stopped(stage: Stage) -> Daemon:
    """A replica that is ahead of its primary, which was restored from an older copy."""
    paris = restored(stage)
    stage.wait_until(paris, lambda status: status["state"] == "stopped", "stopped")
    return paris


SCENES: Final[dict[str, Callable[[Stage], Daemon]]] = {
    "primary": primary,
    "behind": behind,
    "joining": joining,
    "fenced": fenced,
    "stopped": stopped,
}


def _put_files(daemon: Daemon) -> None:
    rows = []
    for number in range(3):
        data = b"a picture\n" * (1_000 * (number + 1))
        sha256 = hashlib.sha256(data).hexdigest()
        put = PUT_FILE.request(sha256)
        with urllib.request.urlopen(urllib.request.Request(put.url(daemon.url), data, method=put.method)):
            rows.append(["create", f"media/{number}.png", sha256, len(data)])
    ask(daemon.url, APPEND.request("files"), {"facts": [[row] for row in rows]})


def photograph(browser: Chromium, daemon: Daemon, folder: Path, name: str, *, is_dark: bool) -> None:
    """Write pictures of the status page: of a desktop, with `is_dark` also a dark one, and of a phone."""
    for kind, (width, height), at_most in (("", DESKTOP, 1_100), ("-phone", PHONE, 1_200)):
        for dark in (False, True) if is_dark and not kind else (False,):
            # Without the script, so that the page does not refresh itself.
            tab = browser.tab(width, height, is_dark=dark, has_script=False)
            tab.open(f"{daemon.url}/status")
            if not tab.value("Boolean(document.querySelector('.state'))"):
                shown = tab.value("document.body.innerText")
                raise RuntimeError(f"{name}: {daemon.url}/status does not show the status page, but: {shown}")
            path = folder / f"status-{name}{kind}{'-dark' if dark else ''}.png"
            tab.photograph(path, at_most=at_most)
            tab.close()
            print(f"wrote {path}", flush=True)


def main() -> int:
    """Make the pictures of all scenes, or of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=", ".join(SCENES))
    parser.add_argument("--to", type=Path, default=IMAGES, metavar="DIR")
    options = parser.parse_args()
    unknown = [name for name in options.scenes if name not in SCENES]
    if unknown:
        parser.error(f"there is no scene {unknown[0]}; there are {', '.join(SCENES)}")
    program = find_chromium()
    if program is None:
        print(
            "no Chromium was found: install it (Debian: apt-get install chromium), or set SYNREPL_CHROMIUM",
            file=sys.stderr,
        )
        return 1
    options.to.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(SECONDS)
    began = time.monotonic()
    with Chromium(program) as browser:
        for name in options.scenes or SCENES:
            with Stage() as stage:
                photograph(browser, SCENES[name](stage), options.to, name, is_dark=name == "primary")
    print(f"done in {time.monotonic() - began:.0f} s")
    return 0


def _too_late(*_: object) -> None:
    raise TimeoutError(f"the pictures were not made within {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
