"""The explanation of a pasted text: finds what is known in each line, and says what it means."""

from types import MappingProxyType
from typing import Final

import msgspec

from synrepl.inspection.explanation.log_messages import explain_message
from synrepl.inspection.explanation.pasted_lines import split_lines, unwrapped
from synrepl.inspection.explanation.results import NOTHING_KNOWN, Explanation, HomeserverState, Passage
from synrepl.inspection.explanation.tokens import (
    FieldPosition,
    SyncToken,
    Writers,
    find_room_positions,
    find_tokens,
    names_advice,
    releases,
    token_fields,
)
from synrepl.inspection.explanation.wire_lines import explain_broken_line, explain_line
from synrepl.inspection.streams import POSITION_NAMES
from synrepl.wire.text import printable

MAX_BYTES: Final = 64 * 1024
"""The most bytes of text that are explained."""

MAX_LINES: Final = 100
"""The most lines that are explained; lines in which nothing is known do not count."""

KINDS: Final = {
    "sync_token": "a sync token",
    "room_position": "a position in rooms, such as t12-345",
    "stuck_sync": "a /sync that timed out",
    "waiting_sync": "a /sync that waits",
    "stuck_request": "a time-out on a stream ('Timed out waiting for repl stream')",
    "waiting_request": "a wait for a stream",
    "caught_up": "the end of a wait",
    "token_from_future": "a token that is ahead of the database",
    "position_ahead": "a position that is ahead",
    "inconsistent_sequence": "a sequence that is inconsistent",
    "fetching_rows": "a gap that is filled",
    "unknown_stream": "an unknown stream",
    "lost_connection": "a lost connection to Redis",
    "protocol_line": "a line of the replication protocol (POSITION, RDATA, REPLICATE ...)",
}
"""What is recognized: the kinds of passages, with a name for each."""


def explain(text: str, state: HomeserverState = NOTHING_KNOWN) -> Explanation:
    """Explain what a text of a homeserver means: tokens, lines of its log, lines of the protocol.

    With the `state` of the homeserver, writers are called by their names, each table has what is stored now,
    and what is ahead of the database is told. Lines that mean the same are one passage. Raises ValueError for
    a text of more than `MAX_BYTES` bytes.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ValueError(f"the text has more than {MAX_BYTES:,} bytes")
    writers = MappingProxyType(dict(state.writers))
    lines = split_lines(text)
    passages: dict[bytes, Passage] = {}
    unrecognized = explained = skipped = 0
    for place, (number, line) in enumerate(lines):
        if explained == MAX_LINES:
            skipped = len(lines) - place
            break
        found = [_with_state(one, state) for one in _explain_line(line, writers)]
        if not found:
            unrecognized += 1
            continue
        explained += 1
        for passage in found:
            key = msgspec.json.encode((passage.kind, passage.words, passage.fields))
            same = passages.get(key, passage)
            passages[key] = msgspec.structs.replace(same, lines=[*same.lines, number])
    return Explanation(
        passages=list(passages.values()), lines=len(lines), unrecognized=unrecognized, skipped=skipped
    )


def _with_state(passage: Passage, state: HomeserverState) -> Passage:
    """Add what the database has now of the streams in the table."""
    if not state.positions or not any(row.get("stream") for row in passage.fields):
        return passage
    words, rows = list(passage.words), []
    for row in passage.fields:
        stream = str(row.get("stream", ""))
        name = POSITION_NAMES.get(stream, stream)
        stored = state.positions.get(name, {})
        rows.append({**row, "stored_now": ", ".join(f"{one} {at}" for one, at in sorted(stored.items()))})
        said = next((row[key] for key in ("position", "token", "written_up_to") if key in row), None)
        last = max([state.allocated.get(name, 0), *stored.values()])
        if stored and isinstance(said, int) and said > last:
            words.append(
                f"{row.get('field') or stream} is at {said}, ahead of the database, which has none beyond"
                f" {last}: it was restored from an older copy, or the text is of another homeserver."
            )
    return msgspec.structs.replace(passage, words=list(dict.fromkeys(words)), fields=rows)


def _explain_line(line: str, writers: Writers) -> list[Passage]:
    """Return what is known in one line: of the texts inside it, the first in which something is."""
    texts = list(unwrapped(line))
    for text in texts:
        if (found := explain_message(text, writers) or explain_line(text)) is not None:
            return [found]
    for text in texts:
        if tokens := find_tokens(text, writers):
            return [_explain_token(shown, token) for shown, token in tokens]
    for text in texts:
        if positions := list(find_room_positions(text, writers)):
            return [_explain_room(shown, position) for shown, position in positions]
    for text in texts:
        if (found := explain_line(text, is_whole=True) or explain_broken_line(text)) is not None:
            return [found]
    return []


def _explain_token(text: str, token: SyncToken) -> Passage:
    words = []
    room = token.positions["room"]
    after = f"after event {room.minimum}, and in each other stream after the position in the table"
    words.append(f"A sync token: what a client has received ends {after}.")
    if token.connection is not None:
        words.append(f"It is one of sliding sync: {token.connection} is the state of the connection.")
    words += releases(token)
    if room.topological is not None:
        words.append(
            f"It pages back in the history of a room, after depth {room.topological}; only the room counts."
        )
    labels = [writer for position in token.positions.values() for writer in position.ahead]
    return Passage(
        kind="sync_token",
        text=printable(text),
        words=words,
        advice=names_advice(labels),
        fields=token_fields(token),
    )


def _explain_room(text: str, position: FieldPosition) -> Passage:
    if position.topological is not None:
        said = (
            f"A place in a room's history: it pages back after depth {position.topological}, event"
            f" {position.minimum}."
        )
    elif position.ahead:
        said = f"A place in the stream events: all writers are after {position.minimum}, but these further."
    else:
        said = f"A place in the stream events: after event {position.minimum}."
    return Passage(
        kind="room_position",
        text=printable(text),
        words=[said, "A sync token begins with this; here the other fields are missing."],
        advice=names_advice(position.ahead),
        fields=token_fields(SyncToken({"room": position})),
    )
