"""The status page as a browser shows it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.chromium import Chromium, find_chromium
from scripts.staging import Stage, ask
from synrepl.replicas.routes import ADD_LEASE
from tests.service.processes import Daemon

PROGRAM = find_chromium()

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium was found on the path, nor named by SYNREPL_CHROMIUM"
)

WIDTHS = (360, 390, 800, 1280)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """One for all tests."""
    assert PROGRAM is not None
    with Chromium(PROGRAM) as started:
        yield started


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A primary with replicas, leases, a follower's worth of facts, and long names."""
    with Stage() as made:
        berlin = made.start("berlin")
        made.append(berlin, 50)
        for number in range(6):
            made.append(berlin, 3, stream="receipts", writer=f"a_worker_with_a_rather_long_name_{number}")
        paris = made.replica("paris-" + "x" * 60, f"tcp:{berlin.follow}")
        made.wait_live(paris)
        made.daemons["paris"] = paris
        ask(berlin.url, ADD_LEASE.request(), {"name": "lisbon"})
        yield made


def daemon(stage: Stage, name: str) -> Daemon:
    """One of them."""
    return stage.daemons[name]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["berlin", "paris"])
def test_the_page_fits_a_phone_without_console_errors(
    browser: Chromium, stage: Stage, name: str, width: int
) -> None:
    """On a phone nobody scrolls sideways; the policy stops nothing of ours."""
    tab = browser.tab(width, 800)
    tab.open(f"{daemon(stage, name).url}/status")
    tab.value("document.querySelectorAll('details').forEach(one => one.open = true)")

    assert tab.value("innerWidth") == width
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value("document.querySelector('.state span').innerText") == "serving"
    assert tab.value("getComputedStyle(document.querySelector('.state')).color") == "rgb(18, 112, 58)"
    assert tab.complaints() == []
    tab.close()


def test_it_is_dark_for_who_wants_that(browser: Chromium, stage: Stage) -> None:
    """By the system's setting."""
    tab = browser.tab(1280, 800, is_dark=True)
    tab.open(f"{daemon(stage, 'berlin').url}/status")

    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 26)"
    tab.close()


def test_the_page_is_whole_without_a_script(browser: Chromium, stage: Stage) -> None:
    """It then asks for itself again as a whole."""
    tab = browser.tab(1280, 800, has_script=False)
    tab.open(f"{daemon(stage, 'berlin').url}/status")

    assert tab.value("document.querySelector('.state span').innerText") == "serving"
    assert tab.value("document.querySelectorAll('section').length") >= 5
    tab.close()


def test_the_page_updates_in_place(browser: Chromium, stage: Stage) -> None:
    """What was opened stays open, and new facts are there."""
    berlin = daemon(stage, "berlin")
    tab = browser.tab(1280, 800)
    tab.open(f"{berlin.url}/status")
    tab.value("window.stays = true; document.getElementById('stream-receipts').open = true")

    stage.append(berlin, 1, stream="device_lists")

    tab.wait_until("Boolean(document.getElementById('stream-device_lists'))")
    assert tab.value("window.stays") is True
    assert tab.value("document.getElementById('stream-receipts').open") is True
    assert tab.complaints() == []
    tab.close()


def test_an_old_page_does_not_look_like_a_new_one(browser: Chromium, tmp_path: Path) -> None:
    """When the daemon is gone the page says so, and goes on when it is back."""
    tab = browser.tab(390, 844)
    with Daemon(tmp_path) as there:
        tab.open(f"{there.url}/status")
        assert tab.value("getComputedStyle(document.querySelector('.lost')).display") == "none"
        port = int(there.url.rsplit(":", 1)[1])

    tab.wait_until("getComputedStyle(document.querySelector('.lost')).display === 'block'")
    with Daemon(tmp_path, http_port=port):
        tab.wait_until("getComputedStyle(document.querySelector('.lost')).display === 'none'")
    tab.close()
