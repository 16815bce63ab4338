"""Addresses that a process connects to: of other processes and of Redis."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers


def _connecting(match: Match, writers: Writers) -> Passage | None:
    """Explain an address without a host or a port: the settings that give them are missing."""
    lacking = re.search(r"(host|port)=None|, (None)\)", match.text, re.ASCII)
    if lacking is None:
        return None
    what = lacking[1] or "port"
    words = f"The address of the main process has no {what}: this process cannot connect."
    name = "worker_replication_port" if what == "port" else "worker_replication_host"
    step = (
        f"set {name} in the files of this process, as the main process's listener of the type replication has"
        " it; or let all processes use Redis, which is known since 1.13, and needed from 1.67 on"
    )
    return msgspec.structs.replace(passage_of(match, [words], [step], []), severity="error")


_REPLICATION_HOST: Final = re.compile(r"https?://([^/\s]{1,300})/_synapse/replication/", re.ASCII)

_NO_PORT: Final = re.compile(r"not ['\"]?([^\s'\"]{1,300})", re.ASCII)

SET_PORT: Final = (
    "set worker_replication_http_port in the file of this process, the port of the main process' listener"
    " with the resource replication; from 1.84 on host and port of each process are in instance_map"
)

SET_NAME: Final = (
    "give that process a host name in place of the address (localhost for ::1): this release puts it into the"
    " URL as it is"
)


def _slips(address: str) -> tuple[list[str], list[str]]:
    """Say what is wrong in the address of another process, as far as a URL shows it."""
    words, advice = [], []
    host, _, port = address.rpartition(":")
    if port == "None":
        words.append("The address of that process has no port (None): it is not set.")
        advice.append(SET_PORT)
    if ":" in host and not host.endswith("]"):
        words.append("Its host is an IPv6 address without brackets, which is no host of a URL.")
        advice.append(SET_NAME)
    return words, advice


def _not_sent(match: Match, writers: Writers) -> Passage | None:
    """Explain a request to another process by its URL."""
    found = _REPLICATION_HOST.search(match.text)
    words, advice = _slips(found[1]) if found else ([], [])
    if "URLParseError" in match.text:
        words.insert(0, "A request to another process of the homeserver was not sent: its URL is not valid.")
    elif words:
        words.insert(0, match.meanings[0])
    return passage_of(match, words, advice or [match.message.do], []) if words else None


def _url(match: Match, writers: Writers) -> Passage | None:
    """Explain a URL that cannot be read by what stands where its port should be."""
    found = _NO_PORT.search(match.text)
    # The host ends at its first colon for who reads it.
    words, advice = _slips(f":{found[1]}" if ":" in found[1] else f"h:{found[1]}") if found else ([], [])
    return passage_of(match, [match.meanings[0], *words], advice, []) if words else None


OF_REDIS: Final = "synapse.replication.tcp.redis"
"""The logger of Synapse's client of Redis."""


def of_redis_client(passage: Passage, logger: str) -> Passage:
    """What a failed lookup means for the client of Redis, which asks for addresses of IPv4 alone."""
    if passage.kind != "address_none" or logger != OF_REDIS:
        return passage
    found = re.search(r"lookup failed: ([\w.-]{1,255}?)\.?(?=$|\s)", passage.text, re.ASCII)
    name = found[1] if found else "NAME"
    words = (
        "That name has no IPv4 address here, or the lookup took too long. Synapse's client of Redis asks for"
        " addresses of IPv4 (A) alone: a name with AAAA alone fails."
    )
    step = (
        "see whether the name is right, and has such an address in this container: getent ahostsv4"
        f" {name}. Without any, set redis.host to a name with one, or to the IPv6 address itself"
    )
    return msgspec.structs.replace(passage, words=[words], advice=[step])


def _tls(match: Match, writers: Writers) -> Passage | None:
    """Explain a failure of TLS by which side did not accept what."""
    if match.text.startswith("certificate verify failed"):
        words = (
            "TLS failed: the certificate of the other side was not accepted. It has expired, is of another"
            " name, comes without those between, or its issuer is not in this system's list of authorities."
        )
        step = (
            "of one server: mend it there (openssl s_client -connect HOST:PORT -servername HOST shows it)."
            f" {OLD_LIST} An authority of your own: federation_custom_ca_list for homeservers, ca_file for"
            " Redis; for all else SSL_CERT_FILE in the environment of the process"
        )
    elif "unknown ca" in match.text or "alert bad certificate" in match.text or "expired" in match.text:
        words = "TLS failed: the other side did not accept the certificate of this one, or of a proxy here."
        step = (
            "serve the whole chain, in date, and for the name that is asked (fullchain.pem and not cert.pem);"
            " of an authority of your own: the other side must have it in its list"
        )
    else:
        return None
    return passage_of(match, [words], [step], [])


OLD_LIST: Final = (
    "Of many, as of matrix.org too: this system's list is too old (as without Let's Encrypt's root of 2021):"
    " update ca-certificates and OpenSSL in the system or image of the process, and restart it."
)

_TLS_PORT: Final = re.compile(r":6380\b")


def _redis_place(match: Match, writers: Writers) -> Passage | None:
    """Explain that Redis was lost, or did not answer, at a port that is mostly one of TLS."""
    if _TLS_PORT.search(match.text) is None:
        return None
    words = [match.message.means, "The port 6380 is by custom that of Redis with TLS, as at Azure."]
    step = (
        "set `redis: {use_tls: true}` (since 1.84; with ca_file if its authority is no public one): without"
        " TLS such a port takes the connection, answers nothing, and ends it"
    )
    return passage_of(match, words, [step, match.message.do], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "tls": _tls,
    "tcp_client_connect": _connecting,
    "http_failed": _not_sent,
    "url_invalid": _url,
    "redis_lost": _redis_place,
    "redis_failed": _redis_place,
}
"""What explains messages by their values, by the key of the message."""
