"""The configurations of proxies: tests/processes/test_proxies.py runs them."""

import re

from tests.servers.proxies import FOLDER, PROXIES

PAGE = (FOLDER.parents[1] / "docs/howto/proxies.md").read_text("utf-8")


def test_each_configuration_is_run_and_on_the_page() -> None:
    """No other file is there."""
    files = {path.name for path in FOLDER.iterdir()}

    assert files == {kind.file for kind in PROXIES.values()}
    assert files == set(re.findall(r"contrib/proxies/([\w.]+)", PAGE))


def test_the_page_shows_what_is_run() -> None:
    """The block for nginx is a part of the file."""
    (block,) = re.findall(r"^```nginx\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

    assert block in (FOLDER / "nginx.conf").read_text("utf-8")
