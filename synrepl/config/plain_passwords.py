"""Notes on passwords of other servers that others could read on the way: they go as the URLs say."""

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs, unquote, urlsplit

from synrepl.http_api.route import public_url
from synrepl.key_rules import is_loopback_host, url_exposure
from synrepl.transports.redis.address import RedisAddress


def plain_passwords(
    *, redis: RedisAddress | None, texts: Mapping[str, str], instance_map: Mapping[str, str]
) -> Iterator[str]:
    """Yield a note for each password that goes to another machine without TLS.

    `texts` are the settings that are texts, among them the URLs of databases; `instance_map` is empty
    without a secret.
    """
    if redis is not None and not redis.tls and (redis.password_file or redis.sentinel_password_file):
        far = [host for host, _ in redis.hosts if not is_loopback_host(host)]
        if far:
            yield f"redis: its password goes to {far[0]} in the clear: use rediss://"
    for name, url in texts.items():
        if not url.startswith(("postgresql://", "postgres://")):
            continue
        query = parse_qs(urlsplit(url).query)
        mode = query.get("sslmode", ["prefer"])[-1]
        far = [host for host in _hosts(url) if not is_loopback_host(host) and not _is_socket(host)]
        if far and not mode.startswith("verify-"):
            sign = "&" if query else "?"
            yield f"{name}: nothing verifies that {far[0]} is the server: add {sign}sslmode=verify-full"
    for name, url in instance_map.items():
        if url_exposure(url, insecure=False):
            where = f"{name} at {public_url(url)}"
            yield f"instance_map: the secret goes to {where} in the clear, as Synapse sends it"


def _hosts(url: str) -> list[str]:
    """Return the hosts in the URL of a database, as libpq reads them.

    There may be several, separated by commas; `host` in the query replaces them; each may be percent-encoded.
    """
    parts = urlsplit(url)
    if named := parse_qs(parts.query).get("host"):
        return [host for host in named[-1].split(",") if host]
    places = parts.netloc.rpartition("@")[2].split(",")
    return [unquote(host) for place in places if (host := urlsplit(f"//{place}").hostname)]


def _is_socket(host: str) -> bool:
    """Whether it is the folder of a UNIX socket, or an abstract one: nobody else reads what goes there."""
    return host.startswith(("/", "@"))
