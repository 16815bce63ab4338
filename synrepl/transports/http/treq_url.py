"""URLs as treq takes them: its own, of Twisted, know no addresses of IPv6."""

from twisted.python.url import URL

from synrepl.http_api.route import public_url


def treq_url(url: str) -> str | URL:
    """Return the URL for treq, without user and password."""
    shown = public_url(url)
    return _AddressUrl.from_text(shown) if "://[" in shown else shown


class _AddressUrl(URL):
    """A URL with an IPv6 address, which treq would try to encode as a name (IDNA)."""

    def to_uri(self) -> URL:
        return URL.to_uri(self.replace(host="localhost")).replace(host=self.host)
