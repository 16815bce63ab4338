"""Files on the status page."""

from synrepl.transports.http.status_page import page
from tests.replicas.http.test_status_page import shown, status


def test_the_page_has_what_fails_and_when_it_is_tried_again() -> None:
    """The name, and the time of the next try."""
    text = shown(status())

    assert "media/1.png" in text
    assert "in 1 min 30 s" in text


def test_without_files_there_is_no_section() -> None:
    """Nor for a peer that may not see them."""
    now = status()
    now["files"] = None

    assert b"<h2>Files" not in page(now, 0.0)
