"""Requests that Synapse, a script or a client sent, by the answer."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from synrepl.homeserver.explanation.app_services import OLD_PATH, asks_old_path
from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers


def _fetched(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that Element got."""
    if len(match.values) < 4:
        return None
    code, path = int(match.values[-1]), match.values[1].partition("?")[0]
    after = f" after {int(match.values[2]) / 1000:,.0f} s" if match.values[2].isdigit() else ""
    words = [f"Element asked {excerpt(path)}, and got {code}{after}."]
    advice = []
    if code == HTTPStatus.UNAUTHORIZED:
        words.append("The homeserver does not accept its access token any more: not a matter of streams.")
        advice = ["log in again; if tokens expire too soon, look at session_lifetime and refresh tokens"]
    elif code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice = ["see the log of the process that answered, or of the proxy, at that time"]
    severity = "look" if code >= HTTPStatus.BAD_REQUEST else "normal"
    return msgspec.structs.replace(passage_of(match, words, advice, []), severity=severity)


_NO_CONNECTION: Final = (
    (
        "WRONG_VERSION_NUMBER|wrong version number|UNKNOWN_PROTOCOL",
        "A script or another client speaks TLS (https://) to a port that does not.",
        "write http:// in place of https:// for that port: behind a proxy Synapse itself has no TLS",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "A client does not accept the certificate of the server in the line: nothing was asked.",
        (
            "the words at the end tell why: self-signed, or no issuer found (the proxy must send the whole"
            " chain, fullchain.pem; requests: verify=FILE of the issuer, or REQUESTS_CA_BUNDLE), expired, or"
            " of another name (ask by a name that it has)"
        ),
    ),
    (
        "NameResolutionError|[Nn]ame or service not known|name resolution|getaddrinfo",
        "The name in the line has no address where the client runs: nothing was asked.",
        "see getent hosts NAME there; names of containers are known in their own network alone",
    ),
    (
        "ConnectTimeout|No route to host|Network is unreachable",
        "The address in the line did not answer to a connection: nothing was asked.",
        "see whether a firewall is between, or the address is of another network",
    ),
)
"""Why Python's requests got no connection: what tells it, the meaning, and what to do."""


def _tool_unreachable(match: Match, writers: Writers) -> Passage | None:
    """Explain an address that a client did not reach, by the reason in the line."""
    told = next((one for one in _NO_CONNECTION if re.search(one[0], match.text)), None)
    return passage_of(match, [told[1]], [told[2]], []) if told else None


_ANSWERED: Final = re.compile(
    r"(?:CodeMessageException|HttpResponseException)[:(] ?['\"]?(?P<code>\d{3})", re.ASCII
)


def with_push_answer(passage: Passage, reasons: Sequence[Match | str]) -> Passage:
    """Explain a push that was refused by the answer, where the exception has it."""
    said = " ".join(one if isinstance(one, str) else one.text for one in reasons)
    found = _ANSWERED.search(f"{passage.text} {said}")
    if found is None:
        return passage
    told = f"The gateway was reached, and answered {found['code']}"
    if re.search(r"<!DOCTYPE|<html", said, re.IGNORECASE):
        told += " with a page for people: a proxy before it (as Cloudflare) refused, and not itself"
    step = "nothing is to be done here unless the gateway is your own: then see its log"
    return msgspec.structs.replace(passage, words=[*passage.words, f"{told}."], advice=[step])


def _asked(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that is an error, of whoever was asked."""
    code = match.values[-1]
    if not code.isdigit() or int(code) < HTTPStatus.BAD_REQUEST:
        return None
    if int(code) == HTTPStatus.NOT_FOUND and " PUT " in match.text and asks_old_path(match.text):
        words = ["An application service answered with 404.", OLD_PATH[0]]
        return msgspec.structs.replace(passage_of(match, words, [OLD_PATH[1]], []), severity="look")
    words = [f"Who was asked, at the address in the line, answered with an error, {code}."]
    advice = ["see the log of that service at that time; for 502 to 504, of the proxy before it"]
    return msgspec.structs.replace(passage_of(match, words, advice, []), severity="look")


def _answered(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer that is an error."""
    code = int(match.values[-1])
    if code < HTTPStatus.BAD_REQUEST:
        return None
    words = [f"Another process of the homeserver answered a request of this one with an error, {code}."]
    advice = ["the log of that process has the reason, at the same time and with the same path"]
    return msgspec.structs.replace(passage_of(match, words, advice, []), severity="look")


DETAILS: Final[Mapping[str, Detail]] = {
    "http_answered": _answered,
    "http_request": _asked,
    "tool_unreachable": _tool_unreachable,
    "client_fetch": _fetched,
}
"""What explains messages by their values, by the key of the message."""
