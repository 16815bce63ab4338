"""What the HTTP API refuses of any request, it refuses of those for files."""

from types import MappingProxyType

from tests.http import test_authorization as authorization
from tests.http import test_head as head
from tests.http import test_holdings as holdings

FILE = f"/v1/files/sha256/{'0' * 64}"


class KeyTests(authorization.Authorization):
    """A key that does not see the stream of files."""

    hidden = (("GET", FILE, b""),)
    bodies = (("PUT", FILE, "limited", 0, 403),)


class ExpectTests(head.ExpectTests):
    """An upload that is not welcome."""

    places = (("PUT", FILE),)


class FilteredTests(holdings.FilteredTests):
    """A copy that does not hold the stream of files."""

    more = MappingProxyType({FILE: "stream files"})


class JoiningTests(holdings.JoiningTests):
    """A copy that is not whole."""

    more = (FILE,)
