"""What other homeservers refuse or do not answer, and what of theirs is refused here."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from synrepl.homeserver.explanation.addresses import OLD_LIST
from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match, find_reason
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers


def _dropped(match: Match, writers: Writers) -> Passage | None:
    """Explain a command that was dropped, if it is the one that a process without Redis drops too."""
    if "REMOTE_SERVER_UP" not in match.text:
        return None
    words = [
        (
            "Another homeserver is back, and this process cannot tell the others, as it is not connected"
            " to Redis. A homeserver without Redis and workers has no others: there it means nothing."
        ),
        NO_PAUSE,
    ]
    step = (
        "without workers: nothing is to be done but for a flood: see which release runs, and update to"
        " 1.92 or later if it is one of 1.87 to 1.91. With workers: see that Redis runs, and that"
        " Connected to redis follows"
    )
    return passage_of(match, words, [step], [])


_DOWN: Final = frozenset(("502", "503", "504", "520", "521", "522", "523", "524", "530"))
"""Answers of a proxy whose server is down (those from 520 on of Cloudflare)."""

TRANSACTION_PATH: Final = re.compile(r"/_matrix/federation/v1/send/[^/\s\"'?]{1,100}", re.ASCII)
"""The path of a transaction: what a homeserver sends to another one."""

NO_PAUSE: Final = (
    "Many of these in a second, from one homeserver to another, are a fault of the sender's Synapse,"
    " 1.87 to 1.90: it tries again without a pause. 1.91 mends that, and 1.92 what is left of it"
    " (matrix-org/synapse#16101, #16156, #16221)."
)

TO_UPDATE: Final = (
    "see which release this process runs: if it is one of 1.87 to 1.91, update to 1.92 or later. Else: one"
    " homeserver is gone, and is asked ever more seldom; all of them: look at this server's way out"
    " (DNS, proxy, firewall)"
)


def _tx_refused(match: Match, code: str) -> Passage:
    """Explain a whole transaction that another homeserver refused."""
    where = {
        "401": "does not accept this server's signature, or the name to which it is sent",
        "403": "does not let this server take part",
        "404": "has no federation at its address any more, as a server that is gone or whose proxy leads"
        " elsewhere",
    }.get(code, "does not take it")
    words = [
        f"Another homeserver (the name in brackets) refused a whole transaction with {code}: it {where}."
    ]
    return passage_of(match, [*words, NO_PAUSE], [TO_UPDATE], [])


def _fed_tx_failed(match: Match, writers: Writers) -> Passage | None:
    """Explain a transaction that was not sent: by the answer, or as one that this process did not make."""
    found = re.search(r"Received (\d{3}) response to transaction", match.text, re.ASCII)
    if found is not None:
        code = found[1]
        return _tx_refused(match, code) if code.startswith("4") and code != "429" else None
    if not match.text.endswith("Failed to send transaction"):
        return None
    words = [
        (
            "Sending a transaction to another homeserver (the name in brackets) failed with the exception"
            " after the line: it failed in this process, and not there. Since 1.21 that homeserver gets the"
            " newest events of its rooms later; before, those in it are not sent again."
        )
    ]
    return msgspec.structs.replace(
        passage_of(match, words, ["read the traceback after it"], []), severity="error"
    )


def _fed_refused(match: Match, writers: Writers) -> Passage | None:
    """Explain a request that another homeserver refused, or that is down there."""
    found = re.search(r"HttpResponseException\([\"'](\d{3})", match.text, re.ASCII)
    if (
        found is not None
        and found[1].startswith("4")
        and found[1] != "429"
        and TRANSACTION_PATH.search(match.text)
    ):
        return _tx_refused(match, found[1])
    if found is not None and found[1] in _DOWN:
        words = [
            (
                f"Another homeserver (the name in brackets) answered with {found[1]}: it, or what is behind"
                " its proxy, is down or too slow. What was to be sent to it is tried again later; a question"
                " (a join, a profile, keys) has failed."
            )
        ]
        told = passage_of(match, words, ["nothing is to be done here"], [])
        return msgspec.structs.replace(told, severity="normal")
    if found is not None and found[1] == "404":
        words = [
            (
                "Another homeserver (the name in brackets) does not have what it was asked for, as a user or"
                " a room that is gone, or answers nothing of Matrix any more."
            )
        ]
        return passage_of(match, words, ["nothing is to be done here"], [])
    if found is None or found[1] not in ("401", "403"):
        return None
    words = [
        (
            f"Another homeserver (the name in brackets) refused a request with {found[1]}: it does not accept"
            " this server's signature, or does not let it take part."
        )
    ]
    advice = [
        (
            "one homeserver: nothing is to be done here. All of them, and only from a worker: its"
            " signing_key_path and server_name must be those of the main process: synrepl inspect --files"
        )
    ]
    if found[1] == "401":
        advice.append(
            "all of them, from each process: they cannot fetch this server's keys, so as to check its"
            " signature: https://federationtester.matrix.org tells; port 8448 or .well-known/matrix/server"
            " must lead to Synapse, and the proxy must not change the path"
        )
    elif "_join/" in match.text or "_knock/" in match.text or "/invite/" in match.text:
        advice.insert(0, "a join, knock or invitation: the rules of the room forbid it to this user")
    return passage_of(match, words, advice, [])


_NO_SIGNATURE: Final[Mapping[str, tuple[str, str]]] = {
    "Destination mismatch": (
        (
            "Another homeserver sent a request that is addressed to another name than server_name here: it"
            " was refused. Nothing is said of its signature."
        ),
        (
            "of one homeserver: it is wrong there; nothing is to be done here. Of all: compare server_name"
            " with what .well-known/matrix/server and the proxy lead here"
        ),
    ),
    "Missing Authorization headers": (
        (
            "A request to the federation API came without what says who sent it: of no homeserver, or through"
            " a proxy that removes the header Authorization. It was refused."
        ),
        "a browser or a monitor: nothing is to be done. Of homeservers: let the proxy pass Authorization on",
    ),
    "Malformed Authorization header": (
        "A request to the federation API says in no known form who sends it: it was refused.",
        "of one sender: nothing is to be done here. Of all: see whether the proxy changes Authorization",
    ),
}
"""Why a request of another homeserver is refused before its signature is looked at (read in 1.100)."""


def refused_unsigned(match: Match) -> Passage | None:
    """Explain a request of another homeserver that was refused, by its words."""
    found = next((told for text, told in _NO_SIGNATURE.items() if text in match.text), None)
    return None if found is None else passage_of(match, [found[0]], [found[1]], [])


def _signature(match: Match, writers: Writers) -> Passage | None:
    """Explain the line of a request that was refused before its signature was looked at."""
    return refused_unsigned(match)


_SENDER: Final = re.compile(r"\bSynapse/(?P<major>\d{1,3})\.(?P<minor>\d{1,4})", re.ASCII)


def transaction_refused(text: str, what: str, code: int) -> tuple[list[str], list[str]]:
    """Explain a transaction of another homeserver that was refused here."""
    sender = _SENDER.search(text)
    release = (int(sender["major"]), int(sender["minor"])) if sender else None
    whose = (
        f"Its sender runs Synapse {release[0]}.{release[1]}, which"
        if release
        else "A sender with 1.87 to 1.90"
    )
    words = [f"{what}: another homeserver sent a transaction, and was refused."]
    advice = []
    if code == HTTPStatus.NOT_FOUND:
        words.append("A 404 there says that the path does not get to a process with federation.")
        advice.append(
            "if this server is to federate: have the proxy send /_matrix/federation/ to Synapse, to a"
            " listener with the resource federation"
        )
    elif code == HTTPStatus.UNAUTHORIZED:
        words.append("A 401 refuses who sends: the signature, or the name to which it is addressed.")
        advice.append(
            "see the reason in Synapse's own log (authenticate_request failed: ...): Destination"
            " mismatch is a name that is not server_name here. Of one homeserver: it is wrong there"
        )
    if release is None or (1, 87) <= release < (1, 91):
        words.append(
            f"{whose} tries again without a pause, a fault that 1.91 mends (matrix-org/synapse#16101)."
        )
        advice.append(
            "a flood of it: tell the administrator of that homeserver to update, or refuse its address"
            " at the proxy"
        )
    return words, advice


TO_OTHERS: Final = frozenset(
    (
        "fed_request_failed",
        "fed_request_failed_old",
        "fed_request_said",
        "fed_tx_failed",
        "fed_tx_failed_old",
        "fed_connect_failed",
        "fed_event_not_sent",
        "fed_ask_failed",
        "key_lookup",
        "device_resync",
    )
)
"""Messages of requests to other homeservers that failed."""

_UNREACHED: Final = {
    "refused": "nothing listens at its address, or a firewall says so",
    "no_route": (
        "there is no way through the network to its address (as from a host with IPv6 alone to a server with"
        " IPv4 alone, or the other way round)"
    ),
    "timed_out": "it did not answer in time",
    "address_none": "its name has no address that this server may go to, or the lookup took too long",
    "tls": "its certificate was not accepted, or it does not speak TLS there",
    "given_up": "it took the connection and gave no answer in time (a minute)",
    "closed_between": "it, or something between, closed the connection without an answer",
    "asked_bad_gateway": "a proxy answered for it, as it is down or too slow",
    "fed_not_retried": "it did not answer before, and is not asked again yet",
}
"""How another homeserver is not reached, by the reason in the line or in the traceback."""


def with_reason_of_others(passage: Passage, match: Match, reasons: Sequence[Match | str]) -> Passage:
    """Explain why another homeserver was not reached: a matter of its own addresses, not of this server's."""
    named = find_reason(match.text[len(match.pattern.literals[0]) :])
    known = [one.message.key for one in (named, *reasons) if isinstance(one, Match)]
    why = [_UNREACHED[key] for key in dict.fromkeys(known) if key in _UNREACHED]
    if not why or len(why) < len(set(known)) or any(isinstance(one, str) for one in reasons):
        return passage
    reached = f"It was not reached: {'; '.join(why)}. Of others that is normal; they are asked again later."
    words = [match.meanings[0], reached]
    advice = [match.message.do]
    said = [match.text, *(one.text for one in reasons if isinstance(one, Match))]
    if any("certificate verify failed" in one for one in said):
        advice.append(OLD_LIST[0].lower() + OLD_LIST[1:].rstrip("."))
    return msgspec.structs.replace(passage, severity="normal", words=words, advice=advice, cause="")


DETAILS: Final[Mapping[str, Detail]] = {
    "command_dropped": _dropped,
    "fed_signature": _signature,
    "fed_request_failed": _fed_refused,
    "fed_tx_failed": _fed_tx_failed,
}
"""What explains messages by their values, by the key of the message."""
