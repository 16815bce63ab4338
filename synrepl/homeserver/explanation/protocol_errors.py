"""Lines of the replication protocol, and streams, that a process does not take."""

import re
from collections.abc import Mapping
from typing import Final

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.homeserver.explanation.wire_lines import explain_line
from synrepl.homeserver.streams import writers_sentence
from synrepl.streams.table import StreamTable
from synrepl.wire.text import printable


def _unknown(match: Match, writers: Writers) -> Passage | None:
    """Explain a stream that a process does not know; None for a word that is no stream."""
    name = match.values[-1].strip("'\" ")
    stream = STREAMS.get(name)
    is_key = match.message.key == "unknown_stream_position"
    # A KeyError may be of anything else that has the name of a stream, if all releases have that stream.
    if is_key and (stream is None or stream.span.since < (1, 13, 0)):
        return None
    words = [f"This process does not know the stream {printable(name)}.", match.message.means]
    if stream is not None:
        words.append(f"Synapse has the stream {name} {stream.span}.")
    else:
        words.append(writers_sentence(printable(name)))
    return passage_of(match, words, [match.message.do], [])


STREAMS: Final = StreamTable.default()

_OF_HTTP: Final = (
    (
        r"HTTP/\d",
        "An HTTP server answers at the address to which this process connects for replication over TCP.",
        (
            "worker_replication_port must be that of the listener with `type: replication`;"
            " worker_replication_http_port is the one for HTTP"
        ),
    ),
    (
        r"(?:GET|POST|PUT|HEAD|OPTIONS)\Z",
        "A client of HTTP came to the port of replication over TCP.",
        (
            "see whether a worker has worker_replication_http_port at this port, which is"
            " worker_replication_port; a health check or a scanner does so too"
        ),
    ),
    (
        r"[\w-]{1,80}:\Z|<",
        "This is a line of HTTP, and none of replication: a port was mistaken for another.",
        "the first such line tells which side speaks HTTP: HTTP/1.1 is the server's, GET or POST a client's",
    ),
)
"""What HTTP is, line by line, where commands are expected: a pattern, what it tells, and what to do."""


def _invalid_command(match: Match, writers: Writers) -> Passage | None:
    """Explain a command that is HTTP, and so tells that a port was mistaken for another."""
    for pattern, told, step in _OF_HTTP:
        if re.match(pattern, match.values[-1], re.ASCII):
            return passage_of(match, [told], [step], [])
    return None


def _with_line(match: Match, writers: Writers) -> Passage | None:
    """Explain the line of the protocol that a message is about."""
    found = re.search(r"b?(?P<quote>['\"])(?P<line>[A-Z_]{4,40}[ /].*)(?P=quote)", match.text, re.DOTALL)
    if found and (http := re.match(r"HTTP/\d|(?:GET|POST|PUT|HEAD|OPTIONS)(?= /)", found["line"])):
        told, step = next(one[1:] for one in _OF_HTTP if re.match(one[0], http[0], re.ASCII))
        return passage_of(match, [told], [step], [])
    inner = explain_line(found["line"]) if found else None
    if inner is None:
        return None
    return passage_of(match, [match.message.means, *inner.words], [match.message.do], inner.fields)


DETAILS: Final[Mapping[str, Detail]] = {
    "unknown_stream": _unknown,
    "unknown_stream_position": _unknown,
    "redis_bad_line": _with_line,
    "tcp_bad_line": _with_line,
    "tcp_invalid_command": _invalid_command,
}
"""What explains messages by their values, by the key of the message."""
