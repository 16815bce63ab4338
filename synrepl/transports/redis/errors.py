"""What went wrong between us and Redis, in words for people."""

import os
from typing import Final

from OpenSSL import SSL
from twisted.internet import error
from twisted.python.failure import Failure

from synrepl.transports.tls import TlsWords, tls_trouble

__all__ = ["TLS_WORDS", "WITHOUT_A_WORD", "RedisRefused", "explain", "host_and_port", "told"]

WITHOUT_A_WORD: Final = "it closed the connection without a word"

TLS_WORDS: Final = TlsWords(
    peer="Redis",
    plain="redis:// is without TLS",
    trust="name a ca_file",
    show="name a cert_file and a key_file",
)

_EXPLAINED: Final[tuple[tuple[str, str], ...]] = (
    ("NOAUTH", "Redis wants a password: say ?password_file=/path in its URL"),
    ("WRONGPASS", "Redis refuses the password: put the right one into the password_file"),
    ("ERR invalid password", "Redis refuses the password: put the right one into the password_file"),
    ("ERR AUTH <password> called without any", "Redis has no password: leave out the password_file"),
    ("ERR Client sent AUTH, but no password", "Redis has no password: leave out the password_file"),
    ("ERR max number of clients", "Redis has no room for another connection: raise its maxclients"),
    ("DENIED", "Redis is in protected mode: without a password it takes no connection from other machines"),
    ("LOADING", "Redis is still loading its data"),
)


class RedisRefused(Exception):
    """Redis does not let us in, or is not what we look for; the text is for people."""


def explain(refusal: str, *, command: str = "") -> str:
    """An error of Redis, and what to do about it."""
    for beginning, text in _EXPLAINED:
        if refusal.startswith(beginning):
            return text
    # Behind that would be what we sent, a password perhaps.
    line = " ".join(refusal.partition(", with args")[0].split())[:300]
    if refusal.startswith("NOPERM"):
        did = command or "a command"
        return f"Redis does not let this user do {did}: grant it with ACL SETUSER ({line})"
    return f"Redis answers {line}"


def told(failure: Failure) -> str:
    """Why there is no connection."""
    value = failure.value
    match value:
        case error.ConnectionRefusedError():
            return "connection refused"
        case error.DNSLookupError():
            return "no such host"
        case error.TimeoutError() | error.TCPTimedOutError():
            return "no answer"
        case error.ConnectionDone():
            return "Redis closed the connection"
        case error.ConnectionLost():
            return "the connection was lost"
        case SSL.Error():
            return tls_trouble(value, TLS_WORDS)
        case error.ConnectError(osError=int(number)):
            return os.strerror(number)
    return " ".join(failure.getErrorMessage().split())[:300] or type(value).__name__


def host_and_port(host: str, port: int) -> str:
    return f"{host}:{port}" if port else host
