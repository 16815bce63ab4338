"""Error messages about Redis connections, for operators."""

import os
from typing import Final

from OpenSSL import SSL
from twisted.internet import error
from twisted.python.failure import Failure

from synrepl.transports.tls import TlsWords, tls_trouble

__all__ = ["TLS_WORDS", "WITHOUT_A_WORD", "RedisRefused", "explain", "host_and_port", "describe_failure"]

WITHOUT_A_WORD: Final = "it closed the connection without a word"

TLS_WORDS: Final = TlsWords(
    peer="Redis",
    not_tls="the peer does not speak it (redis:// is without TLS)",
    trust="name a ca_file",
    show="name a cert_file and a key_file",
)

_EXPLANATIONS: Final[tuple[tuple[str, str], ...]] = (
    ("NOAUTH", "Redis requires a password: add ?password_file=/path to its URL"),
    ("WRONGPASS", "Redis refuses the password: check the password_file"),
    ("ERR invalid password", "Redis refuses the password: check the password_file"),
    ("ERR AUTH <password> called without any", "Redis has no password: remove password_file from its URL"),
    ("ERR Client sent AUTH, but no password", "Redis has no password: remove password_file from its URL"),
    ("ERR max number of clients", "Redis has reached its limit of connections: raise its maxclients"),
    ("DENIED", "Redis is in protected mode: set a password on it, or connect from the same machine"),
    ("LOADING", "Redis is still loading its data"),
)


class RedisRefused(Exception):
    """Redis refuses the connection, or is not the server we need; the text is for operators."""


def explain(refusal: str, *, command: str = "") -> str:
    """Describe an error of Redis, and its remedy."""
    for beginning, text in _EXPLANATIONS:
        if refusal.startswith(beginning):
            return text
    # The rest would quote our command, perhaps with a password.
    line = " ".join(refusal.partition(", with args")[0].split())[:300]
    if refusal.startswith("NOPERM"):
        denied = command or "a command"
        return f"Redis does not allow this user {denied}: grant it with ACL SETUSER ({line})"
    return f"Redis answers {line}"


def describe_failure(failure: Failure) -> str:
    """Describe a failure to connect."""
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
