"""What redis-cli prints of a homeserver's Redis: CLIENT LIST, MONITOR, PUBSUB NUMSUB and INFO.

Docs: docs/howto/explain.md.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import ClassVar, Final

import msgspec

from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.html.humanize import counted, listed
from synrepl.wire.text import printable


class _Output(msgspec.Struct):
    """What one command of redis-cli printed, as far as it was read, and what is said of it."""

    kind: ClassVar[str]
    command: ClassVar[str]
    lines: list[int] = []
    count: int = 0

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is of this output, and needs no other explanation."""
        raise NotImplementedError

    def passage(self) -> Passage | None:
        """What is said of it; None if there is nothing to say."""
        raise NotImplementedError

    def _add(self, number: int) -> None:
        self.count += 1
        if len(self.lines) < MAX_NUMBERS:
            self.lines = [*self.lines, number]

    def _passage(self, words: list[str], advice: list[str], severity: str) -> Passage:
        return Passage(
            kind=self.kind,
            text=self.command,
            words=words,
            advice=advice,
            severity=severity,
            lines=self.lines,
            count=self.count,
        )


_CLIENT: Final = re.compile(
    r"id=\d{1,20} addr=\S{1,200} .{0,600}\bsub=(?P<sub>\d{1,9}) psub=(?P<psub>\d{1,9}) "
    r"(?:.{0,600}\bomem=(?P<waiting>\d{1,12})\b)?",
    re.ASCII,
)
RAISE: Final = "until then raise client-output-buffer-limit pubsub of Redis"
MUCH: Final = 1024 * 1024
"""The fewest bytes that wait for a connection which does not keep up."""


class _Clients(_Output):
    """The connections in a text so far, and how many of them have a subscription.

    `waiting` are the most bytes that wait for one of these (omem).
    """

    kind = "redis_clients"
    command = "redis-cli client list"
    subscribed: int = 0
    waiting: int = 0

    def takes(self, line: str, number: int) -> bool:
        found = _CLIENT.match(line.strip("> \t"))
        if found is None:
            return False
        self._add(number)
        is_subscribed = found["sub"] != "0" or found["psub"] != "0"
        self.subscribed += is_subscribed
        if is_subscribed:
            self.waiting = max(self.waiting, int(found["waiting"] or 0))
        return True

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        all_of_them = counted(self.count, "connection")
        told = f"{all_of_them} to Redis, of which {self.subscribed} receive (sub of 1 or more);"
        words = [
            f"{told} the others only send, or are of other programs. A process of Synapse has one of each."
        ]
        advice = ["compare the number that receive with that of the processes: synrepl inspect"]
        if not self.subscribed:
            words.insert(0, "No process receives anything over Redis: no connection is subscribed.")
            advice = [
                (
                    "see in the log of each process whether it was subscribed, and restart it; compare"
                    " redis: in the files of all: synrepl inspect --files"
                )
            ]
        elif self.waiting >= MUCH:
            words.insert(
                0,
                f"A connection that receives does not keep up: {self.waiting} bytes wait for it (omem). Redis"
                " closes it at client-output-buffer-limit pubsub (32 MB, or 8 MB for a minute, if not set):"
                " its process then connects again, and fetches what it missed.",
            )
            advice = [f"find its process by addr, and why it does not read (CPU of one core); {RAISE}"]
        severity = "error" if not self.subscribed else "look" if self.waiting >= MUCH else ""
        return self._passage(words, advice, severity)


_COMMAND: Final = re.compile(
    r"(?:\A|\s)\d{9,11}\.\d{6} \[\d{1,5} (?P<client>[^\]]{1,200})\]"
    r" \"(?P<name>\w{1,40})\"(?P<rest>(?: \".*)?)\Z",
    re.ASCII,
)
_ARGUMENT: Final = re.compile(r' "((?:[^"\\]|\\.)*)"')
_VERB: Final = re.compile(r"[A-Z_]{4,40}(?= |\Z)", re.ASCII)

MAX_SHOWN: Final = 3
"""The most published lines that are explained one by one, and the most channels that are named."""
MAX_KEPT: Final = 1000
"""The most different channels, connections and commands that are told apart."""
_REST: Final = "others"
OF_SYNAPSE: Final = (
    "A process of Synapse subscribes to the channel that its server_name names, and publishes to it on a"
    " second connection; since 1.60 the process with the background work subscribes to /USER_IP as well."
)
_CACHED: Final = "cache_v1:"
"""How the keys begin that Synapse's processes share."""


def _kept(name: str, among: Collection[str]) -> str:
    return name if name in among or len(among) < MAX_KEPT else _REST


class _Commands(_Output):
    """The commands in the output of MONITOR so far.

    The first ones that publish a line are left to be explained by themselves, too.
    """

    kind = "redis_commands"
    command = "redis-cli monitor"
    names: Counter[str] = msgspec.field(default_factory=Counter)
    published: dict[str, Counter[str]] = {}
    publishers: dict[str, set[str]] = {}
    subscribers: dict[str, set[str]] = {}
    shared: int = 0
    left: int = 0

    def takes(self, line: str, number: int) -> bool:
        found = _COMMAND.search(line.rstrip())
        if found is None:
            return False
        name, client = found["name"].upper(), found["client"]
        arguments = _ARGUMENT.findall(found["rest"])
        self.names[_kept(name, self.names)] += 1
        self._add(number)
        if name in ("SUBSCRIBE", "PSUBSCRIBE"):
            for channel in arguments:
                clients = self.subscribers.setdefault(_kept(channel, self.subscribers), set())
                clients.add(_kept(client, clients))
        elif name == "PUBLISH" and arguments:
            verb = _VERB.match(arguments[1]) if len(arguments) > 1 else None
            channel = _kept(arguments[0], self.published)
            clients = self.publishers.setdefault(channel, set())
            clients.add(_kept(client, clients))
            verbs = self.published.setdefault(channel, Counter())
            verbs[_kept(verb[0] if verb else _REST, verbs)] += 1
            if verb is not None and self.left < MAX_SHOWN:
                self.left += 1
                return False
            return True
        elif arguments and arguments[0].startswith(_CACHED):
            self.shared += 1
        return True

    def passage(self) -> Passage | None:
        if self.count == self.left:
            return None
        counts = listed([f"{count} {printable(name)}" for name, count in self.names.most_common(8)])
        words = [f"Commands that a Redis was sent (redis-cli monitor): {counts}."]
        advice: list[str] = []
        for channel, verbs in list(self.published.items())[:MAX_SHOWN]:
            what = listed([f"{count} {verb}" for verb, count in verbs.most_common(8)])
            words.append(
                f"On {printable(channel)} there were published: {what};"
                f" connections that did so: {len(self.publishers[channel])}."
            )
        for channel, clients in list(self.subscribers.items())[:MAX_SHOWN]:
            words.append(f"Connections that subscribed to {printable(channel)} here: {len(clients)}.")
        if self.shared:
            words.append(
                f"{self.shared} commands were for what the processes of Synapse share ({_CACHED}...)."
            )
        if self.published or self.subscribers:
            words.append(OF_SYNAPSE)
        heard = {one.partition("/")[0] for one in self.subscribers}
        unheard = sorted({one.partition("/")[0] for one in self.published} - heard) if heard else []
        verbs_of_all = sum(self.published.values(), Counter())
        if unheard:
            said = f"Nobody who subscribed here hears {printable(', '.join(unheard[:MAX_SHOWN]))}"
            words.insert(0, f"{said}: the channels of those who did are others.")
            advice.append(
                "compare server_name and redis: in the files of all processes: synrepl inspect --files"
            )
        elif verbs_of_all["REPLICATE"] and not verbs_of_all["POSITION"]:
            words.insert(0, "A process asked for the positions (REPLICATE), and none came (POSITION).")
            advice.append(
                "if it goes on, no other process is at this Redis: compare redis: in the files of all (host,"
                " port, path): synrepl inspect --files"
            )
        return self._passage(words, advice, "look" if advice else "")


_ASKED: Final = re.compile(r"\bpubsub numsub\b", re.IGNORECASE)
_ITEM: Final = re.compile(
    r"\s*\d{1,4}\) (?:\"(?P<channel>[^\"]{1,255})\"|\(integer\) (?P<count>\d{1,9}))\s*\Z"
)


class _Numsub(_Output):
    """The channels in the output of PUBSUB NUMSUB so far, each with the number of its subscribers."""

    kind = "redis_subscribers"
    command = "redis-cli pubsub numsub"
    counts: dict[str, int] = {}
    is_asked: bool = False
    channel: str = ""

    def takes(self, line: str, number: int) -> bool:
        if _ASKED.search(line):
            self.is_asked = True
        elif not self.is_asked or (found := _ITEM.match(line)) is None:
            self.is_asked = False
            return False
        elif found["channel"]:
            self.channel = found["channel"]
        elif self.channel and len(self.counts) < MAX_KEPT:
            self.counts[self.channel] = int(found["count"])
        self._add(number)
        return True

    def passage(self) -> Passage | None:
        if not self.counts:
            return None
        shown = list(self.counts.items())[:MAX_NUMBERS]
        words = [f"{printable(channel)} has {count} subscribers." for channel, count in shown]
        deaf = [channel for channel, count in shown if not count]
        advice = ["compare the number with that of the processes: synrepl inspect"]
        if deaf:
            words.insert(0, f"Nobody hears {printable(', '.join(deaf[:MAX_SHOWN]))}.")
            advice = ["compare server_name and redis: in the files of all processes: synrepl inspect --files"]
        return self._passage([*words, OF_SYNAPSE], advice, "look" if deaf else "")


class _Figure(msgspec.Struct, frozen=True):
    """A line of INFO: which values are worth a look, what they mean, and what to do."""

    is_odd: Callable[[str], bool]
    means: str
    advice: str


def _is_some(value: str) -> bool:
    return value.isdecimal() and int(value) > 0


_FIGURES: Final = {
    "client_output_buffer_limit_disconnections": _Figure(
        _is_some,
        "connections were closed, as they did not read what was published fast enough: a process of Synapse"
        " then connects again, and fetches what it missed",
        f"find the process that is busy (CPU of one core); {RAISE}",
    ),
    "rejected_connections": _Figure(
        _is_some, "connections were refused, as there were maxclients already", "raise maxclients of Redis"
    ),
    "loading": _Figure(lambda value: value == "1", "Redis reads its file, and answers nothing yet", "wait"),
    "master_link_status": _Figure(
        lambda value: value == "down",
        "it is a replica that has lost its primary: what is published at the primary does not come here",
        "let all processes of Synapse go to the primary",
    ),
    "role": _Figure(
        lambda value: value == "slave",
        "it is a replica: what is published here reaches the subscribers of this one alone",
        "let all processes of Synapse go to the primary",
    ),
    "pubsub_channels": _Figure(
        lambda value: value == "0",
        "nobody is subscribed to any channel: no process of Synapse receives anything over this Redis",
        "compare redis: in the files of all processes: synrepl inspect --files",
    ),
    "evicted_keys": _Figure(
        _is_some,
        "keys were removed for memory; Synapse keeps nothing there that it needs, but what is published takes"
        " memory too",
        "give Redis more memory (maxmemory)",
    ),
}
"""Lines of INFO that say something of a homeserver's Redis."""

_FIGURE: Final = re.compile(r"(?P<name>[a-z_0-9]{3,60}):(?P<value>\S{1,200})\s*\Z")
_SECTION: Final = re.compile(
    r"#\s*(?:Server|Clients|Memory|Persistence|Stats|Replication|CPU|Keyspace|Commandstats|Cluster)\s*\Z"
)
_KNOWN: Final = ("redis_version", "connected_clients", "maxclients", "blocked_clients", "tcp_port", *_FIGURES)


class _Info(_Output):
    """The lines of INFO so far. One without a section before it must be one that is known here."""

    kind = "redis_info"
    command = "redis-cli info"
    odd: dict[str, str] = {}
    is_open: bool = False

    def takes(self, line: str, number: int) -> bool:
        text = line.strip("> \t\r")
        if _SECTION.match(text):
            self.is_open = True
            return True
        found = _FIGURE.match(text)
        if found is None or not (self.is_open or found["name"] in _KNOWN):
            self.is_open = self.is_open and not text
            return False
        self._add(number)
        figure = _FIGURES.get(found["name"])
        if figure is not None and figure.is_odd(found["value"]):
            self.odd = {**self.odd, found["name"]: found["value"]}
        return True

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        words = [f"{name}:{printable(value)}: {_FIGURES[name].means}." for name, value in self.odd.items()]
        words = words or ["What a Redis says of itself (INFO): nothing that is looked at here is odd in it."]
        advice = list(dict.fromkeys(_FIGURES[name].advice for name in self.odd))
        return self._passage(words, advice, "look" if self.odd else "")


class RedisOutput:
    """Whatever redis-cli printed in a text."""

    def __init__(self) -> None:
        self._kinds = (_Clients(), _Commands(), _Numsub(), _Info())

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is of any output, and needs no other explanation."""
        return any(one.takes(line, number) for one in self._kinds)

    def passages(self) -> list[Passage]:
        """What is said of each output."""
        return [found for one in self._kinds if (found := one.passage()) is not None]
