"""What the HTTP API refuses of any request, it refuses of those for files."""

from types import MappingProxyType

from tests.http import test_authorization as authorization
from tests.http import test_head as head
from tests.http import test_read_gate as read_gate

FILE = f"/v1/files/sha256/{'0' * 64}"


class KeyTests(authorization.Authorization):
    """A key that does not see the stream of files."""

    hidden = (("GET", FILE, b""),)
    bodies = (("PUT", FILE, "limited", 0, 403),)


class ExpectTests(head.ExpectTests):
    """An upload that is not welcome."""

    places = (("PUT", FILE),)


class FilteredTests(read_gate.FilteredTests):
    """A copy that does not hold the stream of files."""

    more = MappingProxyType({FILE: "stream files"})


class JoiningTests(read_gate.JoiningTests):
    """A copy that is not whole."""

    more = (FILE,)
