"""What makes the connections of an HTTP client without a line in the log for each of them."""

from twisted.web.client import _HTTP11ClientFactory

__all__ = ["QuietFactory"]


class QuietFactory(_HTTP11ClientFactory):
    """Twisted's own, which says nothing of each connection that it opens and closes."""

    noisy = False
