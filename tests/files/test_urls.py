"""A file is fetched from any kind of URL that the address of a daemon may be."""

import pytest
from treq.client import HTTPClient
from twisted.internet.task import Clock

from synrepl.files.http_files import HttpFiles
from synrepl.transports.http.http_client import HttpClient
from tests.http.test_urls import SHA256, URLS, Asked, ended


@pytest.mark.parametrize(("url", "position"), URLS)
def test_files_are_fetched_from_a_url(url: str, position: tuple[str, str, int, str]) -> None:
    """They are asked for by a client of their own."""
    scheme, host, port, path = position
    agent = Asked()
    files = HttpFiles(HttpClient(Clock(), client=HTTPClient(agent)), url)

    async def nothing(data: bytes) -> None:
        raise AssertionError(data)

    ended(files.fetch(SHA256, 0, nothing))

    assert (scheme, host, port, f"{path}/v1/files/sha256/{SHA256}") == agent.only()
