"""Responses that are kept for a moment."""

from twisted.internet.task import Clock

from synrepl.http_api.routes import METRICS
from synrepl.transports.http.response_cache import FRESH_SECONDS, Response, ResponseCache


def test_a_response_is_kept_for_a_moment_whatever_sets_the_clock() -> None:
    """Metrics that were made while the clock was days ahead were shown for days."""
    clock = Clock()
    clock.advance(1_790_000_000)
    cache, response = ResponseCache(clock), Response(b"{}", ())
    cache.store(METRICS, None, "", response)

    assert response == cache.find(METRICS, None, "")
    assert cache.find(METRICS, None, "of another type") is None
    clock.advance(FRESH_SECONDS)
    assert cache.find(METRICS, None, "") is None

    cache.store(METRICS, None, "", response)
    clock.rightNow -= 8 * 86_400
    assert cache.find(METRICS, None, "") is None
