"""Sync tokens: read in every notation of Synapse's, compared, and told by release.

Synapse writes a token as ``s1_2_3...`` for clients, and as ``StreamToken(...)`` in two notations in its log.
Docs: docs/howto/explain.md.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from synrepl.inspection.streams import TOKEN_FIELDS, TokenField, written_by
from synrepl.wire.text import printable

Writers = Mapping[int, str]
"""The names of writers by their number in the homeserver's table `instance_map`."""

MAX_TOKENS: Final = 8
"""The most tokens that are read in one line: a response to /sync has one for each room."""

_NUMBER: Final = r"-?\d{1,19}"
_AHEAD: Final = r"(?:~\d{1,9}\.\d{1,19})*"
_ROOM: Final = rf"(?:s{_NUMBER}|t{_NUMBER}-\d{{1,19}}|m\d{{1,19}}{_AHEAD})"
_OTHER: Final = rf"(?:{_NUMBER}|m\d{{1,19}}{_AHEAD})"

_TOKEN: Final = re.compile(
    rf"(?<![\w~.$!@#-])(?:(?P<connection>\d{{1,19}})/)?(?P<token>{_ROOM}(?:_{_OTHER})+)(?![\w~])",
    re.ASCII,
)
_ROOM_ONLY: Final = re.compile(
    rf"(?:^|\b(?:from|to|since|start|end|next_batch|prev_batch)\\?[\"']?[=:]\s*\\?[\"']?)"
    rf"(?P<token>{_ROOM})(?![\w~.-])",
    re.ASCII,
)

_IN_PARENTHESES: Final = r"\([^()]*(?:\([^()]*\)[^()]*)*\)"
VALUE: Final = rf"(?:{_NUMBER}(?!\w)|(?:Room|MultiWriter)StreamToken{_IN_PARENTHESES})"
"""The pattern of a position in the log of Synapse."""

_MEMBER: Final = re.compile(rf"(?<!\w)(?P<name>[a-z_]{{2,40}})\s*[:=]\s*(?P<value>{VALUE})", re.ASCII)
_LOGGED_TOKEN: Final = re.compile(r"(?<!\w)StreamToken\(", re.ASCII)
_STREAM: Final = re.compile(rf"\bstream\s*[:=]\s*({_NUMBER})", re.ASCII)
_TOPOLOGICAL: Final = re.compile(rf"\btopological\s*[:=]\s*({_NUMBER})", re.ASCII)
_INSTANCES: Final = re.compile(r"\b(?:instances|instance_map)\s*[:=][^{]{0,40}\{([^{}]*)\}", re.ASCII)
_INSTANCE: Final = re.compile(rf"['\"]?([^\s,'\":]{{1,255}})['\"]?: ({_NUMBER})", re.ASCII)


class FieldPosition(msgspec.Struct, frozen=True):
    """How far a stream is: all writers up to `minimum`, and those of `ahead` up to the number they have.

    `topological` is the depth in a room's graph of events, for tokens that page back through its history.
    """

    minimum: int
    ahead: Mapping[str, int] = {}
    topological: int | None = None

    def of(self, writer: str) -> int:
        """Return how far one writer is."""
        return self.ahead.get(writer, self.minimum)

    def behind(self, other: "FieldPosition") -> dict[str, int]:
        """Return by how much this position is behind another: by writer, and with "" for all others."""
        found = {"": other.minimum - self.minimum}
        for writer in sorted({*self.ahead, *other.ahead}):
            found[writer] = other.of(writer) - self.of(writer)
        return {writer: lag for writer, lag in found.items() if lag > 0}

    def __str__(self) -> str:
        parts = [f"{self.minimum}", *(f"{writer} at {place}" for writer, place in self.ahead.items())]
        return ", ".join(parts)


class SyncToken(msgspec.Struct, frozen=True):
    """A sync token: the position in each of its fields, by the name of the field.

    `connection` is the number before the slash of a sliding sync token. Fields beyond those of 1.163 are
    called ``field 15`` and so on.
    """

    positions: Mapping[str, FieldPosition]
    connection: int | None = None

    @property
    def count(self) -> int:
        """The number of fields."""
        return len(self.positions)


def find_tokens(text: str, writers: Writers) -> list[tuple[str, SyncToken]]:
    """Return the sync tokens in a text, in every notation, with the text of each, in order."""
    found = [
        (match.start(), match.group(), _from_client(match, writers))
        for match in islice(_TOKEN.finditer(text), MAX_TOKENS)
    ]
    for match in islice(_LOGGED_TOKEN.finditer(text), MAX_TOKENS):
        end = _closing(text, match.end())
        positions = {
            one["name"].removesuffix("_key"): read_position(one["value"])
            for one in _MEMBER.finditer(text, match.end(), end)
        }
        if "room" in positions:
            found.append((match.start(), text[match.start() : end + 1], SyncToken(positions)))
    return [(shown, token) for _, shown, token in sorted(found, key=lambda one: one[0])]


def find_room_positions(text: str, writers: Writers) -> Iterator[tuple[str, FieldPosition]]:
    """Yield the positions in rooms that a text has: tokens of one field."""
    for match in islice(_ROOM_ONLY.finditer(text), MAX_TOKENS):
        yield match["token"], _from_text(match["token"], writers)


def _from_client(match: re.Match[str], writers: Writers) -> SyncToken:
    texts = match["token"].split("_")
    names = [field.name for field in TOKEN_FIELDS]
    names += [f"field {number}" for number in range(len(names) + 1, len(texts) + 1)]
    positions = {name: _from_text(text, writers) for name, text in zip(names, texts, strict=False)}
    return SyncToken(positions, None if match["connection"] is None else int(match["connection"]))


def _from_text(text: str, writers: Writers) -> FieldPosition:
    """Read one field of a client's token, which matches `_ROOM` or `_OTHER`."""
    if text[0] == "m":
        minimum, *others = text[1:].split("~")
        pairs = (other.split(".") for other in others)
        return FieldPosition(
            int(minimum), {_label(int(number), writers): int(place) for number, place in pairs}
        )
    if text[0] == "t":
        topological, _, minimum = text[1:].rpartition("-")
        return FieldPosition(int(minimum), topological=int(topological))
    return FieldPosition(int(text.removeprefix("s")))


NUMBERED: Final = "writer "
"""The beginning of what a writer is called whose name is not known. Names of instances have no spaces."""


def _label(number: int, writers: Writers) -> str:
    return printable(writers[number]) if number in writers else f"{NUMBERED}{number}"


def read_position(text: str) -> FieldPosition:
    """Read a position as Synapse logs it: the text matches `VALUE`."""
    if text[0] in "-0123456789":
        return FieldPosition(int(text))
    minimum, topological, ahead = (pattern.search(text) for pattern in (_STREAM, _TOPOLOGICAL, _INSTANCES))
    return FieldPosition(
        int(minimum[1]) if minimum else 0,
        {printable(name): int(place) for name, place in _INSTANCE.findall(ahead[1])} if ahead else {},
        int(topological[1]) if topological else None,
    )


_PARENTHESIS: Final = re.compile("[()]")


def _closing(text: str, place: int) -> int:
    """Return where the parenthesis that was opened before `place` is closed, or the end of the text."""
    depth = 1
    for match in _PARENTHESIS.finditer(text, place):
        depth += 1 if match.group() == "(" else -1
        if not depth:
            return match.start()
    return len(text)


WRITERS_QUERY: Final = "SELECT instance_id, instance_name FROM instance_map WHERE instance_id IN ({})"


def names_advice(labels: Iterable[str]) -> list[str]:
    """Return how to find the names of writers that are known by number only; nothing if all are known."""
    numbers = sorted({int(one.removeprefix(NUMBERED)) for one in labels if one.startswith(NUMBERED)})
    if not numbers:
        return []
    return [f"see which processes the writers are: {WRITERS_QUERY.format(', '.join(map(str, numbers)))}"]


def releases(token: SyncToken) -> list[str]:
    """Return sentences on the releases that write such a token, and on what cannot be told."""
    count, newest = token.count, len(TOKEN_FIELDS)
    # Receipts got several writers, and sliding sync its tokens, after 1.66.
    is_recent = token.connection is not None or any(
        one.ahead for name, one in token.positions.items() if name != "room"
    )
    said = [f"It has {count} field{'s' if count > 1 else ''}: {_releases(count, is_recent=is_recent)}."]
    if 9 < count < newest:
        said.append("Several releases write as many fields: the token does not tell which one it was.")
    if count < newest:
        said.append("A newer release reads the fields that are missing at the end as 0.")
    said.append("A release that has fewer fields refuses the token, and its client must sync anew.")
    return said


def _releases(count: int, *, is_recent: bool) -> str:
    if count > len(TOKEN_FIELDS):
        return "more than Synapse 1.163 has, so a newer release or not a sync token"
    if count == len(TOKEN_FIELDS):
        return "Synapse 1.163, or a release shortly before or after it"
    if count > 10:
        return "a Synapse after 1.85, before 1.163"
    if count == 10:
        return "a Synapse after 1.66, before 1.163 (1.85 has 10)"
    if count == 9:
        if is_recent:
            return "a Synapse after 1.66, as older ones have no sliding sync and one writer of receipts"
        return "Synapse 0.24 to 1.66, or a release soon after that"
    if count == 8:
        return "a Synapse before 0.24, which brought groups"
    return "a Synapse before 0.21, or the token was cut off"


def token_fields(token: SyncToken) -> list[dict[str, Any]]:
    """Return the table of a token: its fields, and a row below for each writer that is ahead."""
    rows: list[dict[str, Any]] = []
    known = {field.name: field for field in TOKEN_FIELDS}
    for name, position in token.positions.items():
        field = known.get(name, TokenField(name=name, stream="", note="unknown to 1.163"))
        by = written_by(field.stream) if field.stream else ""
        row = {"field": name, "position": position.minimum, "stream": field.stream, "written_by": by}
        rows.append({**row, "note": _note(field, position)})
        rows += [
            {
                "field": f"{name}, {writer}",
                "position": place,
                "stream": field.stream,
                "written_by": by,
                "note": "",
            }
            for writer, place in position.ahead.items()
        ]
    return rows


def _note(field: TokenField, position: FieldPosition) -> str:
    if position.topological is not None:
        return f"pages back in a room: after depth {position.topological}"
    if position.ahead:
        return "all writers but those below are here"
    return field.note
