"""Requests that a process or a proxy answered: by status, path and time."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from synrepl.caches.unreachable import kept_answer
from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.federation import TRANSACTION_PATH, refused_unsigned, transaction_refused
from synrepl.homeserver.explanation.main_requests import is_of_main
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match, find_reason
from synrepl.homeserver.explanation.proxies import told_of_proxy, told_of_state
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.wire.text import printable


def _upstream(match: Match, writers: Writers) -> Passage | None:
    """Explain that a proxy got no answer: of whom, and where on the way it failed."""
    told = told_of_proxy(match.text)
    return passage_of(match, *told, []) if told is not None else None


def _received(match: Match, writers: Writers) -> Passage | None:
    """Explain a request of a worker of the oldest releases, which asked for rows over HTTP."""
    if "/_synapse/replication?" not in match.text:
        return None
    words = [
        (
            "A worker of a release before 0.21 asks for the rows of all streams after the positions in the"
            " address: so far it is in each."
        )
    ]
    fields = [
        {"stream": printable(name), "position": int(place)}
        for name, place in re.findall(r"[?&]([a-z_]{2,40})=(-?\d{1,19})", match.text)
        if name != "timeout"
    ]
    return passage_of(match, words, [], fields)


_REQUEST: Final = re.compile(
    r"Processed request: (?P<time>[\d.]{1,20})sec(?:/-?(?P<sending>[\d.]{1,20})sec)? .{0,200}?B!?"
    r' (?P<code>\d{3})!? "(?P<method>[A-Z]{1,10}) (?P<path>/[^\s?"]{0,500})',
    re.ASCII | re.DOTALL,
)

RESOURCES: Final = (
    ("/_synapse/replication/", "replication"),
    ("/_matrix/client/v1/media/", "client, in a process that has the media repository"),
    ("/_matrix/federation/v1/media/", "federation, in a process that has the media repository"),
    ("/_matrix/client/", "client"),
    ("/_matrix/media/", "media"),
    ("/_matrix/federation/", "federation"),
    ("/_matrix/key/", "keys (or federation)"),
    ("/_synapse/", "client"),
)
"""The resource that a listener must have (`names`) for requests with this beginning of a path."""

OF_MEDIA: Final = re.compile(
    r"/_synapse/admin/v1/(?:(?:user|users|room)/[^/]+/media|media/|quarantine_media/|purge_media_cache)",
    re.ASCII,
)
"""Paths of the admin API that only a process with the media repository takes, by the resource media."""

WRITES: Final = (
    ("/receipt/", "receipts"),
    ("/read_markers", "receipts"),
    ("/typing/", "typing"),
    ("/sendToDevice/", "to_device"),
    ("/account_data/", "account_data"),
    ("/presence/", "presence"),
    ("/pushrules/", "push_rules"),
)
"""The stream to which requests with this part of a path write, of which only its writers take them."""

SLOW_SECONDS: Final = 10
"""A request between processes that takes longer than this many seconds is reported as slow."""


def _request(match: Match, writers: Writers) -> Passage | None:
    """Explain a request as Synapse logged it."""
    found = _REQUEST.search(match.text)
    if found is None:
        words = ["A request was answered; the line was cut off before it tells which, and how."]
        return msgspec.structs.replace(passage_of(match, words, [], []), severity="normal")
    seconds = max(float(found[name].rstrip(".")) for name in ("time", "sending") if found[name])
    return _answer(match, int(found["code"]), found["method"], found["path"], seconds)


def _proxied(match: Match, writers: Writers) -> Passage | None:
    """Explain a request as nginx or HAProxy logged it."""
    found = re.search(
        r'"(?P<method>[A-Z]{1,10}) (?P<path>/_(?:matrix|synapse)/[^\s?"]{0,500})', match.text, re.ASCII
    )
    if (state := told_of_state(match.text)) is not None:
        words, advice, is_minor = state
        passage = passage_of(match, words, advice, [])
        return msgspec.structs.replace(passage, severity="normal") if is_minor else passage
    said = re.search(r"(?:\A|\s)(-?\d{1,3}) \+?\d{1,12} - - ", match.text, re.ASCII)
    code = said[1] if said else match.values[-1] if match.pattern.literals[0] else match.values[0]
    return _answer(match, int(code), found["method"], found["path"], 0.0) if found is not None else None


OF_MAIN: Final = (
    "Only the main process takes that path with that method (read in 1.85 to 1.163): a worker answers with"
    " 404 or 405 and M_UNRECOGNIZED. If this is the main process, what was asked for is not there."
)

TO_MAIN: Final = "if this is a worker: have the proxy send that method of that path to the main process"


def _client_refused(match: Match, writers: Writers) -> Passage | None:
    """Explain a request that the process does not take, if only the main process takes it."""
    found = re.search(r"method='([A-Z]{1,10})' uri='(/[^\s'?]{0,500})", match.text, re.ASCII)
    if found is None or "Unrecognized request" not in match.text or not is_of_main(found[1], found[2]):
        return _refused(match)
    what = f"This process does not take {found[1]} {excerpt(found[2])}."
    return passage_of(match, [what, OF_MAIN], [TO_MAIN], [])


def _refused(match: Match) -> Passage | None:
    """Explain a request that was refused, or failed, by its status."""
    *_, code, told = match.values
    if not re.fullmatch(r"[45]\d\d", code):
        return None
    if code == "401" and (unsigned := refused_unsigned(match)) is not None:
        return unsigned
    # What is known of the reason is told after it.
    why = "." if find_reason(told) else f": {excerpt(told)}"
    if code.startswith("4"):
        words = f"A request was refused with {code}, which is a matter of who asked{why}"
        return passage_of(match, [words], [], [])
    words = f"A request could not be answered ({code}){why}"
    return passage_of(match, [words], ["see what was logged before with the same request, as in GET-17"], [])


MAX_REFUSALS: Final = 1000
"""So many refused requests are kept until the line of their answer comes: the last ones."""


class Refusals:
    """The requests of which a line tells why they were refused: their answer needs no other reason."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    def told(self, passage: Passage, match: Match, request: str) -> Passage:
        """Say of the answer to a refused request that this line before is its reason."""
        key = match.message.key
        if key == "client_refused" and request:
            self._codes[request] = match.values[-2]
            if len(self._codes) > MAX_REFUSALS:
                del self._codes[next(iter(self._codes))]
        if key != "request" or (code := self._codes.pop(request, "")) == "":
            return passage
        found = _REQUEST.search(match.text)
        if found is None or found["code"] != code or code == str(HTTPStatus.UNAUTHORIZED.value):
            return passage
        words = [f"The request was answered with {code}, for the reason that another line of it tells."]
        return msgspec.structs.replace(passage, words=words, advice=[], severity="normal")


def _answer(match: Match, code: int, method: str, path: str, seconds: float) -> Passage | None:
    """Explain a request that was refused or failed, or was slow between processes; None for all others."""
    is_internal = path.startswith("/_synapse/replication/")
    resource = next((one for start, one in RESOURCES if path.startswith(start)), "")
    if OF_MEDIA.match(path):
        resource = "media, in a process that has the media repository"
    whose = "Another process of the homeserver asked this one" if is_internal else "A request came"
    # Each transaction has a number of its own.
    shown = "/_matrix/federation/v1/send/..." if TRANSACTION_PATH.match(path) else excerpt(path)
    what = f"{whose}: {method} {shown}, answered with {code}"
    if is_internal and code < HTTPStatus.BAD_REQUEST:
        if seconds < SLOW_SECONDS:
            return msgspec.structs.replace(passage_of(match, [f"{what}."], [], []), severity="normal")
        words = [
            (
                f"{what} after {seconds:.0f} s: this process was busy, or waited for something, as the"
                " database or another homeserver."
            )
        ]
        advice = ["look at its load, and at what it logged in that time with the same request"]
    elif is_internal and code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        words = [f"{what}: they do not have the same worker_replication_secret."]
        advice = ["compare it in the files of all processes: synrepl inspect --files"]
    elif (
        HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
        and code != HTTPStatus.TOO_MANY_REQUESTS
        and TRANSACTION_PATH.match(path)
    ):
        words, advice = transaction_refused(match.text, what, code)
    elif code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and is_of_main(method, path):
        words = [f"{what}.", OF_MAIN]
        advice = [TO_MAIN]
    elif code == HTTPStatus.NOT_FOUND and resource:
        words = [
            f"{what}.",
            (
                "Either no listener of the process has that path, or what was asked for is not there: the"
                " line does not tell which. M_UNRECOGNIZED in the answer means the first."
            ),
        ]
        advice = [
            (
                f"see whether the listener of this port has the resource {resource}, and whether this kind of"
                " process takes that path (https://element-hq.github.io/synapse/latest/workers.html); if not,"
                " have the proxy send it elsewhere"
            )
        ]
        if resource == "federation" and "Processed request" not in match.text:
            advice.insert(
                0,
                "if Synapse's own log has nothing of it, the proxy answered: have it send /_matrix/federation"
                " and /_matrix/key of that name and port to Synapse, or let .well-known/matrix/server (or the"
                " SRV record) name the port where they are; https://federationtester.matrix.org tells",
            )
    elif code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        words = [f"{what}: it failed, or was not answered."]
        advice = [
            (
                "see what the process logged before with the same request, as in GET-17: it has the"
                " exception. For 502 to 504 of a proxy: whether the process runs"
            )
        ]
        stream = next((one for part, one in WRITES if part in path), "")
        if stream and method != "GET":
            words.append(f"Only processes that write {stream} take such requests.")
            advice.append(
                f"see whether it went to one that `stream_writers`: {stream} names, or to the main process if"
                " that key is missing: synrepl inspect --files"
            )
    elif "Processed request" not in match.text:
        return None
    else:
        return _answered_well(match, what, path, seconds)
    return passage_of(match, words, advice, [])


def _answered_well(match: Match, what: str, path: str, seconds: float) -> Passage:
    """Explain a request that was answered: a /sync by how long it waited."""
    severity, advice, words = "normal", list[str](), ["A request was answered."]
    if path.endswith("/sync"):
        found = re.search(r"[?&]timeout=(\d{1,9})", match.text, re.ASCII)
        waits = int(found[1]) / 1000 if found else 0
        if seconds > waits + SLOW_SECONDS:
            severity = "look"
            words = [
                (
                    f"A /sync took {seconds:.0f} s, though its client wanted to wait {waits:.0f} s at most:"
                    " there was much to answer, or the process or the database was busy."
                )
            ]
            advice = [
                (
                    "after a pause, or for a new client: common. Always: look at its load, and"
                    " send /sync to workers of their own"
                )
            ]
        else:
            words = ["A /sync was answered: at once with what was new, or after a wait for it."]
    elif " 200!" in match.text or " 499" in match.text:
        words = ["A request was answered, though its client had gone away."]
    return msgspec.structs.replace(passage_of(match, words, advice, []), severity=severity)


def _kept_answer(match: Match, writers: Writers) -> Passage | None:
    """Explain an answer out of a response cache: how long it is kept, and what ends that."""
    said = kept_answer(match.values[0])
    if not said:
        return None
    words = [match.message.means, f"It is {said}."]
    step = (
        "if the answer is stale: wait for that, or ask otherwise (another timeout or filter); no row drops it"
    )
    return passage_of(match, words, [step] if "kept for" in said else [], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "request": _request,
    "proxy_request": _proxied,
    "proxy_upstream": _upstream,
    "client_refused": _client_refused,
    "request_received": _received,
    "response_cached": _kept_answer,
}
"""What explains messages by their values, by the key of the message."""
