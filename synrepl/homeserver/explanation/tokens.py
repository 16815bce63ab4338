"""Sync tokens: read in every notation of Synapse's, compared, and told by release.

Synapse writes a token as ``s1_2_3...`` for clients, and as ``StreamToken(...)`` in two notations in its log.
Docs: docs/howto/explain.md.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final

import msgspec

from synrepl.homeserver.streams import BY_NAME, TOKEN_FIELDS, TokenField, written_by
from synrepl.wire.dialect import Release, Span, release_text
from synrepl.wire.text import printable

Writers = Mapping[int, str]
"""The names of writers by their number in the homeserver's table `instance_map`."""

MAX_TOKENS: Final = 8
"""The most tokens that are read in one line: a response to /sync has one for each room."""

_NUMBER: Final = r"-?\d{1,19}"
_AHEAD: Final = r"(?:~(?:\d{1,9}\.\d{1,19}(?:~\d{1,9}\.\d{1,19})*)?)?"
"""The writers that are ahead. 1.76 to 1.111 wrote the first tilde without any."""
_ROOM: Final = rf"(?:s{_NUMBER}|t{_NUMBER}-\d{{1,19}}|m\d{{1,19}}{_AHEAD})"
_OTHER: Final = rf"(?:{_NUMBER}|m\d{{1,19}}{_AHEAD})"

_TOKEN: Final = re.compile(
    rf"(?<![\w~.$!@#-])(?:(?P<connection>\d{{1,19}})/)?(?P<token>{_ROOM}(?:_{_OTHER})+)(?![\w~]|%7[Ee])",
    re.ASCII,
)
_KEY: Final = (
    r"(?:\A|(?<![a-z])(?:from|to|since|start|end|at|pos|token|next_batch|prev_batch|prev_token|next_token)"
    r"\\?[\"']?\s*(?:[=:]|=>)\s*\\?[\"']?)"
)
"""The name before a token, such as ``from=``, or the beginning of the text."""

_ROOM_ONLY: Final = re.compile(rf"{_KEY}(?P<token>{_ROOM})(?![\w~.-])", re.ASCII)
_KEY_BEFORE: Final = re.compile(rf"{_KEY}\Z", re.ASCII)
_LIKELY: Final = re.compile(r"(?<![\w~.$!@#-])(?:\d+/)?[smt]-?\d[\d~.-]*_|Token\(", re.ASCII)

_IN_PARENTHESES: Final = r"\([^()]*(?:\([^()]*\)[^()]*)*\)"
VALUE: Final = rf"(?:{_NUMBER}(?!(?!quarantined_media)\w)|(?:Room|MultiWriter)StreamToken{_IN_PARENTHESES})"
"""The pattern of a position in the log of Synapse."""
INTEGER: Final = r"-?\d{1,19}"

_MEMBER: Final = re.compile(
    # 1.154 to 1.158 have nothing between the number of sticky_events and the next name.
    rf"(?:(?<!\w)|(?=quarantined_media))(?P<name>[a-z_]{{2,40}})\s*[:=]\s*"
    rf"(?:(?P<value>{VALUE})|u?'(?P<text>{_ROOM}|{_NUMBER})')",
    re.ASCII,
)
_POSITION: Final = re.compile(rf"(?<!\w)(?P<kind>Room|MultiWriter)StreamToken{_IN_PARENTHESES}", re.ASCII)
_LOGGED_TOKEN: Final = re.compile(r"(?<!\w)(?:Stream)?Token\((?=room)", re.ASCII)
"""Of a client's token, releases before 1.13 log the fields as they were read: in quotes."""
_STREAM: Final = re.compile(rf"\bstream\s*[:=]\s*({_NUMBER})", re.ASCII)
_TOPOLOGICAL: Final = re.compile(rf"\btopological\s*[:=]\s*({_NUMBER})", re.ASCII)
_INSTANCES: Final = re.compile(r"\b(?:instances|instance_map)\s*[:=][^{]{0,40}\{([^{}]*)\}", re.ASCII)
_INSTANCE: Final = re.compile(rf"['\"]?([^\s,'\":]{{1,255}})['\"]?: ({_NUMBER})", re.ASCII)


class FieldPosition(msgspec.Struct, frozen=True):
    """How far a stream is: all writers up to `minimum`, and those of `ahead` up to the number they have.

    `topological` is the depth in a room's graph of events, for tokens that page back through its history.
    `is_map` says that it was written as a map of writers, which may be empty.
    """

    minimum: int
    ahead: Mapping[str, int] = {}
    topological: int | None = None
    is_map: bool = False

    @property
    def below(self) -> dict[str, int]:
        """The writers in the map that are not ahead, which a valid position never has."""
        return {writer: place for writer, place in self.ahead.items() if place <= self.minimum}

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
    called ``field 15`` and so on. `logged_by` are the releases that log it so, if a log has it.
    """

    positions: Mapping[str, FieldPosition]
    connection: int | None = None
    logged_by: Span = Span()

    @property
    def count(self) -> int:
        """The number of fields."""
        return len(self.positions)


def find_tokens(text: str, writers: Writers) -> list[tuple[str, SyncToken]]:
    """Return the sync tokens in a text, in every notation, with the text of each, in order.

    A token of a few fields is one only after a key such as ``since=``, or at the beginning of the text.
    """
    if _LIKELY.search(text) is None:
        return []
    found = [
        (match.start(), match.group(), _from_client(match, writers))
        for match in islice(_TOKEN.finditer(text), MAX_TOKENS)
        if match["token"].count("_") >= FEW_FIELDS
        or _KEY_BEFORE.search(text, max(0, match.start() - 40), match.start())
    ]
    for match in islice(_LOGGED_TOKEN.finditer(text), MAX_TOKENS):
        end = _closing(text, match.end())
        positions = {
            one["name"].removesuffix("_key"): (
                _from_text(one["text"], writers) if one["text"] else read_position(one["value"])
            )
            for one in _MEMBER.finditer(text, match.end(), end)
        }
        if "room" in positions:
            shown = text[match.start() : end + 1]
            spans = [span for mark, span in LOG_FORMS.items() if mark in shown]
            token = SyncToken(positions, logged_by=spans[0] if spans else Span())
            found.append((match.start(), shown, token))
    return [(shown, token) for _, shown, token in sorted(found, key=lambda one: one[0])]


def roles_of(token: str, text: str) -> list[str]:
    """Return what is said of a token, in order: a request "asked" with it, an answer to a sync "gave" it."""
    before = (
        rf"(?<![a-z_])(since|next[_ ]batch|pos)\\?[\"']?\s{{0,8}}([=:])\s{{0,8}}\\?[\"']?{re.escape(token)}"
    )
    return [_ROLES[key, mark] for key, mark in re.findall(before, text) if (key, mark) in _ROLES]


def is_of_history(token: str, text: str) -> bool:
    """Whether a text has a token as a place in a room's history, as ``prev_batch``: it is older by nature."""
    before = text[max(0, (place := text.find(token)) - 100) : max(place, 0)]
    return _HISTORY.search(before) is not None


def is_end_of_history(token: str, text: str) -> bool:
    """Whether an answer in a text has a token as its start and as its end."""
    keys = re.findall(rf"\b(start|end)\W{{1,8}}{re.escape(token)}(?![\w~])", text)
    return {"start", "end"} <= {*keys}


_HISTORY: Final = re.compile(r"prev_batch\W(?:(?!batch|since|s\d).){0,60}\Z|[?&]dir=b&from=\Z", re.ASCII)


_ROLES: Final = {
    ("since", "="): "asked",
    ("pos", "="): "asked",
    ("pos", ":"): "gave",
    ("next_batch", ":"): "gave",
    ("next_batch", "="): "gave",
    ("next batch", ":"): "gave",
}

FEW_FIELDS: Final = 5
"""So many fields make a token that can be nothing else."""


def find_positions(text: str) -> Iterator[tuple[str, str, FieldPosition]]:
    """Yield the positions as Synapse logs them: the text, "Room" or "MultiWriter", and the position."""
    for match in islice(_POSITION.finditer(text), MAX_TOKENS):
        yield match.group(), match["kind"], read_position(match.group())


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
        pairs = (other.split(".") for other in others if other)
        ahead = {_label(int(number), writers): int(place) for number, place in pairs}
        return FieldPosition(int(minimum), ahead, is_map=True)
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
        is_map=text[0] == "M" or bool(ahead and ahead[1].strip()),
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


FIELDS_SINCE: Final[tuple[tuple[int, Release], ...]] = (
    (8, (0, 21, 0)),
    (9, (0, 24, 0)),
    (10, (1, 76, 0)),
    (11, (1, 139, 0)),
    (12, (1, 148, 0)),
    (13, (1, 154, 0)),
    (14, (1, 159, 0)),
)
"""How many fields a token has, from which release on."""

MAPS_SINCE: Final[Mapping[str, Release]] = {
    "room": (1, 22, 0),
    "receipt": (1, 96, 0),
    "device_list": (1, 135, 0),
    "quarantined_media": (1, 154, 0),
    "sticky_events": (1, 163, 0),
}
"""The fields that may be maps of writers, from which release on."""

CONNECTION_SINCE: Final[Release] = (1, 113, 0)
"""The first release with the tokens of sliding sync."""


LOG_FORMS: Final[Mapping[str, Span]] = {
    ",thread_subscriptions": Span(since=(1, 139, 0), until=(1, 159, 0)),
    "(room: ": Span(since=(1, 112, 0)),
    "frozendict": Span(since=(1, 44, 0), until=(1, 81, 0)),
    "immutabledict": Span(since=(1, 81, 0)),
}
"""What a token in a log has, from which release on and until when; the narrowest first."""


def releases(token: SyncToken) -> list[str]:
    """Return sentences on the releases that write such a token, and on what is wrong with it."""
    count, newest = token.count, len(TOKEN_FIELDS)
    said = [f"It has {count} field{'s' if count > 1 else ''}: {_releases(token)}."]
    is_written = _writes_below(token)
    for name, position in token.positions.items():
        said += below_sentences(name, position, is_written=is_written and name == "room")
    if count < newest:
        said.append("A newer release reads the fields that are missing at the end as 0.")
    said.append("A release that has fewer fields refuses the token, and its client must sync anew.")
    return said


def below_sentences(name: str, position: FieldPosition, *, is_written: bool) -> list[str]:
    """Say what is wrong with a position whose map has writers that are not ahead."""
    who = (
        "releases 1.22 to 1.75 wrote such tokens, later ones do not"
        if is_written
        else "no release writes such a token, so a client or a proxy made it"
    )
    return [
        f"{name} has {writer} at {place}, which is not ahead of {position.minimum}: such a token cannot be"
        f" right. Synapse since 1.112 refuses it with 400, and its client must sync anew; {who}."
        for writer, place in position.below.items()
    ]


def _writes_below(token: SyncToken) -> bool:
    """Whether the releases that write a token may have written writers that are not ahead: in the room."""
    since, until = _span(token)
    return since < BELOW_UNTIL and until is not None and until <= BELOW_UNTIL


BELOW_UNTIL: Final[Release] = (1, 76, 0)
"""The first release that leaves out the writers of a room that are not ahead."""


def _releases(token: SyncToken) -> str:
    count = token.count
    if count > len(TOKEN_FIELDS):
        return "more than Synapse 1.163 has, so of a newer release or not a sync token"
    if count < FIELDS_SINCE[0][0]:
        return "fewer than any release since 0.21 writes, so of an older one, or the token was cut off"
    since, until = _span(token)
    if until is not None and since >= until:
        return (
            f"no release writes it so. So many fields are of"
            f" {span_text(*_fields_span(count))}, but its form is of {span_text(since, None)}: it was cut off"
        )
    return span_text(since, until)


def _fields_span(count: int) -> tuple[Release, Release | None]:
    place = count - FIELDS_SINCE[0][0]
    until = FIELDS_SINCE[place + 1][1] if place + 1 < len(FIELDS_SINCE) else None
    return FIELDS_SINCE[place][1], until


def _span(token: SyncToken) -> tuple[Release, Release | None]:
    """Return the releases that write a token: by its number of fields, its maps, its connection."""
    if token.count < FIELDS_SINCE[0][0] or token.count > len(TOKEN_FIELDS):
        return (0, 0, 0), None
    since, until = _fields_span(token.count)
    since = max(since, token.logged_by.since)
    if token.logged_by.until is not None:
        until = min(until or token.logged_by.until, token.logged_by.until)
    for name, position in token.positions.items():
        if position.is_map:
            since = max(since, MAPS_SINCE.get(name, since))
            if not position.ahead and token.logged_by == Span():
                # Since 1.76 writers that are not ahead are left out; since 1.112 an empty map is a number.
                since, until = max(since, (1, 76, 0)), min(until or (1, 112, 0), (1, 112, 0))
            elif position.below and since < BELOW_UNTIL:
                until = min(until or BELOW_UNTIL, BELOW_UNTIL)
    if token.connection is not None:
        since = max(since, CONNECTION_SINCE)
    return since, until


def span_text(since: Release, until: Release | None) -> str:
    """Return releases in words, as ``Synapse 1.13 to 1.58``."""
    if until is None:
        return f"Synapse {release_text(since)} and later"
    last = f"{until[0]}.{until[1] - 1}" if until[1] and not until[2] else ""
    if last == release_text(since):
        return f"Synapse {last}"
    if last:
        return f"Synapse {release_text(since)} to {last}"
    return f"Synapse {release_text(since)} and later, before {release_text(until)}"


def is_older(one: SyncToken, other: SyncToken) -> bool:
    """Whether one token is behind another in some field, and beyond it in none."""
    pairs = [
        (place, other.positions[name])
        for name, place in one.positions.items()
        if name in other.positions and name not in ("typing", "groups")
    ]
    return any(place.behind(newer) for place, newer in pairs) and not any(
        newer.behind(place) for place, newer in pairs
    )


def compare(tokens: Sequence[SyncToken]) -> tuple[list[str], list[dict[str, Any]]]:
    """Compare tokens in the order in which they were found: what moved, what stood still, what went back.

    Returns sentences, and a table with a row for each field of them all.
    """
    words: list[str] = []
    places: dict[str, list[int]] = {}
    for name in tokens[0].positions:
        if all(name in one.positions for one in tokens):
            found = [one.positions[name] for one in tokens]
            places[name] = [one.minimum for one in found]
            for writer in dict.fromkeys(writer for one in found for writer in one.ahead):
                places[f"{name}, {writer}"] = [one.of(writer) for one in found]
    steps = {name: [last - first for first, last in pairwise(at)] for name, at in places.items()}
    for name, moved in steps.items():
        for number, step in enumerate(moved, 1):
            before = places[name][number - 1]
            if step < 0 and name not in ("typing", "groups"):
                words.append(f"{name} goes back by {-step:,} from token {number} to token {number + 1}.")
            elif step == 0 and any(moved) and any(other[number - 1] > 0 for other in steps.values()):
                after = next((one for one in moved[number:] if one), 0)
                words.append(
                    f"{name} stands still at {before} from token {number} to token {number + 1}"
                    + (f", and is {after:,} further in a later one." if after > 0 else ".")
                )
    if any(step < 0 for name, moved in steps.items() for step in moved if name not in ("typing", "groups")):
        words.append(
            "A stream goes back if the tokens are of two processes, of which one is behind, or not in the"
            " order in which they were given out."
        )
    still = [name for name, moved in steps.items() if not any(moved)]
    if len(still) == len(places):
        words.append("All tokens are at the same positions.")
    elif still:
        words.append(
            f"Still in all tokens: {', '.join(still)}. If something was written there meanwhile, the"
            " process that gave out the tokens does not receive that stream."
        )
    rows = [
        {
            "field": name,
            **{f"token_{number}": place for number, place in enumerate(at, 1)},
            "moved": at[-1] - at[0],
            "stream": BY_NAME[field].stream if (field := name.partition(",")[0]) in BY_NAME else "",
        }
        for name, at in places.items()
    ]
    return words, rows


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
    if position.below:
        return "has a writer that is not ahead: no valid token has"
    if position.ahead:
        return "all writers but those below are here"
    return field.note
