"""Responses that are kept for a moment."""

from twisted.internet.task import Clock

from synrepl.http_api.routes import STATUS
from synrepl.transports.http.response_cache import FRESH_SECONDS, Response, ResponseCache


def test_a_response_is_kept_for_a_moment_whatever_sets_the_clock() -> None:
    """A status that was made while the clock was days ahead was shown for days."""
    clock = Clock()
    clock.advance(1_790_000_000)
    cache, response = ResponseCache(clock), Response(b"{}", ())
    cache.store(STATUS, None, response)

    assert response == cache.find(STATUS, None)
    clock.advance(FRESH_SECONDS)
    assert cache.find(STATUS, None) is None

    cache.store(STATUS, None, response)
    clock.rightNow -= 8 * 86_400
    assert cache.find(STATUS, None) is None
