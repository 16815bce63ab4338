"""Connection factory of the HTTP client without a log line per connection."""

from twisted.web.client import _HTTP11ClientFactory

__all__ = ["QuietFactory"]


class QuietFactory(_HTTP11ClientFactory):
    """Twisted's factory without its log messages."""

    noisy = False
