"""What redis-cli prints as a list: PUBSUB, CONFIG GET, ACL, SLOWLOG GET, LATENCY, MEMORY, SENTINEL, more."""

import re
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

from synrepl.homeserver.explanation.redis_info import OF_ROLE
from synrepl.homeserver.explanation.redis_printed import (
    MAX_KEPT,
    MAX_SHOWN,
    MUCH,
    OF_SYNAPSE,
    RAISE,
    RedisPrinted,
)
from synrepl.homeserver.explanation.redis_server import EVENTS, INTRUSION, OPEN_TO_ALL, is_planted
from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.html.humanize import listed, size
from synrepl.wire.text import printable

_ASKED: Final = re.compile(
    r"(?:.{0,200}\b(?:redis|valkey)-cli\b(?:.{0,200} |(?= ))|\S{1,100}:\d{1,5}(?:\[\d{1,3}\])?> ?|> ?|)"
    r"(?P<what>pubsub (?:numsub|channels)|config get|acl log|acl list|slowlog get|latency latest|memory stats"
    r"|sentinel (?:masters?|replicas|slaves|sentinels)|role\Z"
    r"|(?<=[> ])publish(?= \S))(?=\s|\Z)",
    re.IGNORECASE,
)
"""A command of which the list is read, behind a prompt or redis-cli."""
_WORDS: Final = (
    *("pubsub ", "config get", "acl l", "slowlog get", "latency latest", "memory stats", "sentinel "),
    *("role", "publish "),
)
"""Of which a line has one, if it is such a command."""
_A_USER: Final = re.compile(r"\s*\d{1,4}\) \"user \S{1,200} (?:on|off) ")
"""The first line of ACL LIST where the command is not pasted."""
_NESTED: Final = re.compile(r"(?:\s*\d{1,4}[)#~])*(?=\s*\d{1,4}[)#~] )")
_ITEM: Final = re.compile(
    r"\s*(?:\d{1,4}[)#~] )?(?:\"(?P<text>(?:[^\"\\]|\\.){0,600})\"(?: => \"(?P<value>[^\"]{0,600})\")?"
    r"|\(integer\) (?P<count>\d{1,20}))\s*\Z"
)


class _Listed(RedisPrinted):
    """What redis-cli printed as a list after a command of this kind: its texts and numbers so far."""

    asks: ClassVar[str]
    items: list[str | int] = []

    def takes(self, line: str, number: int) -> bool:
        nested = _NESTED.match(line[:200])
        found = _ITEM.match(line[nested.end() if nested else 0 :][:1500])
        if found is None:
            return False
        if len(self.items) < MAX_KEPT:
            given = [one for one in found.group("text", "value") if one is not None]
            self.items = [*self.items, *given, *([int(found["count"])] if found["count"] else [])]
        self.add(number)
        return True

    @property
    def pairs(self) -> dict[str, str | int]:
        """The items as names with their values: of the first, where a name comes again."""
        found: dict[str, str | int] = {}
        for name, value in zip(self.items[::2], self.items[1::2], strict=False):
            found.setdefault(str(name), value)
        return found


class _Numsub(_Listed):
    """The channels in the output of PUBSUB NUMSUB so far, each with the number of its subscribers."""

    kind = "redis_subscribers"
    command = "redis-cli pubsub numsub"
    asks = "pubsub numsub"

    def passage(self) -> Passage | None:
        counts = {channel: count for channel, count in self.pairs.items() if isinstance(count, int)}
        if not counts:
            return None
        shown = list(counts.items())[:MAX_NUMBERS]
        words = [f"{printable(channel)} has {count} subscribers." for channel, count in shown]
        deaf = [channel for channel, count in shown if not count]
        advice = ["compare the number with that of the processes: synrepl inspect"]
        if deaf:
            words.insert(0, f"Nobody hears {printable(', '.join(deaf[:MAX_SHOWN]))}.")
            advice = ["compare server_name and redis: in the files of all processes: synrepl inspect --files"]
        return self.told([*words, OF_SYNAPSE], advice, "look" if deaf else "")


class _Channels(_Listed):
    """The channels in the output of PUBSUB CHANNELS so far: those that anybody hears."""

    kind = "redis_subscribers"
    command = "redis-cli pubsub channels"
    asks = "pubsub channels"

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        if not self.items:
            return self.told(
                [
                    (
                        "Nobody is subscribed to any channel: no process of Synapse receives anything over"
                        " this Redis."
                    )
                ],
                ["compare redis: in the files of all processes: synrepl inspect --files"],
                "look",
            )
        names = printable(", ".join(map(str, self.items[:MAX_NUMBERS])))
        return self.told(
            [f"Channels that somebody hears: {names}.", OF_SYNAPSE],
            ["how many hear each: redis-cli PUBSUB NUMSUB CHANNEL"],
            "",
        )


class _Role(_Listed):
    """The output of ROLE so far."""

    kind = "redis_info"
    command = "redis-cli role"
    asks = "role"

    def passage(self) -> Passage | None:
        if not self.items:
            return None
        if self.items[0] not in ("slave", "sentinel"):
            return self.told([f"This Redis is a {printable(str(self.items[0]))}."], [], "")
        if self.items[0] == "sentinel":
            return self.told(
                ["This is a Sentinel and no Redis: Synapse does not speak with it."],
                ["give Synapse the address of the master, or of a proxy that follows it"],
                "error",
            )
        of = ":".join(printable(str(one)) for one in self.items[1:3])
        figure = OF_ROLE
        return self.told([f"This Redis {figure.means[3:]}; its master is {of}."], [figure.advice], "look")


class _Published(_Listed):
    """What PUBLISH answered: how many received it."""

    kind = "redis_subscribers"
    command = "redis-cli publish"
    asks = "publish"

    def passage(self) -> Passage | None:
        counts = [one for one in self.items if isinstance(one, int)]
        if not counts:
            return None
        words = [
            (
                "What PUBLISH answers is how many connections received it: each process of Synapse has one"
                " that receives. Those at other nodes of a cluster are not counted."
            )
        ]
        if counts[-1]:
            return self.told([f"{counts[-1]} connections received it.", *words], [], "")
        return self.told(
            ["Nobody received it: no process of Synapse is subscribed to that channel here.", *words],
            ["the channel is the server_name; compare redis: in the files of all: synrepl inspect --files"],
            "look",
        )


class _AclRefusals(_Listed):
    """What ACL LOG printed: what Redis refused to whom. Of several the first, which is the newest."""

    kind = "redis_info"
    command = "redis-cli acl log"
    asks = "acl log"

    def passage(self) -> Passage | None:
        given = {name: printable(str(value)) for name, value in self.pairs.items()}
        if "reason" not in given:
            return None
        who, what = given.get("username", "a user"), given.get("object", "")
        if given["reason"] == "auth":
            words = [
                f"Redis refused a login as {who}: there is no such user, or the password is another one."
            ]
            advice = [
                "compare redis: password of Synapse (and its default user) with ACL LIST, or requirepass"
            ]
        else:
            words = [f"The user {who} of Redis may not use the {given['reason']} {what}."]
            advice = [
                (
                    f"ACL SETUSER {who} allchannels, or &SERVER_NAME and &SERVER_NAME/*, for channels;"
                    " ~cache_v1:* for keys; +subscribe +publish +get +set +ping for commands:"
                    " Synapse needs these"
                )
            ]
        return self.told(words, advice, "error")


class _Users(_Listed):
    """What ACL LIST printed: a user and its rules in each line."""

    kind = "redis_info"
    command = "redis-cli acl list"
    asks = "acl list"

    def passage(self) -> Passage | None:
        users = {
            words[1]: words[2:]
            for one in self.items
            if (words := str(one).split())[:1] == ["user"] and words[1:]
        }
        if not users:
            return None
        told = listed([printable(name[:100]) for name in list(users)[:MAX_SHOWN]])
        words = [f"Users of a Redis (ACL): {told}. Synapse's needs channels (&), +subscribe, +publish."]
        advice = []
        open_to_all = [name for name, rules in users.items() if {"on", "nopass"} <= {*rules}]
        deaf = [
            name
            for name, rules in users.items()
            if {"on", "resetchannels"} <= {*rules} and not any(one.startswith("&") for one in rules)
        ]
        for name, rules in users.items():
            channels = [one[1:] for one in rules if one.startswith("&")]
            if channels and "*" not in channels and len(words) <= MAX_SHOWN:
                only = listed([printable(one[:100]) for one in channels[:MAX_SHOWN]])
                words.append(
                    f"{printable(name[:100])} may use only channels as {only}: others are refused (NOPERM)."
                )
        if open_to_all:
            names = printable(", ".join(open_to_all[:MAX_SHOWN]))
            words.insert(
                0, f"{names} lets in everybody without a password (on nopass), as far as it is reached."
            )
            advice.append(
                "ACL SETUSER default off, or >PASSWORD, once Synapse has a user (username since 1.162)"
            )
        if deaf:
            names = printable(", ".join(deaf[:MAX_SHOWN]))
            words.insert(0, f"{names} may use no channel: SUBSCRIBE and PUBLISH are refused (NOPERM).")
            advice.insert(
                0, "ACL SETUSER NAME &SERVER_NAME &SERVER_NAME/USER_IP (or &*), and in the file of users"
            )
        return self.told(words, advice, "look" if advice else "")


class _Watched(_Listed):
    """What a Sentinel printed of the masters, copies or Sentinels that it watches."""

    kind = "redis_info"
    command = "redis-cli sentinel"
    asks = "sentinel"

    def passage(self) -> Passage | None:
        names, flags, others, quorum = (
            self._all(one) for one in ("name", "flags", "num-other-sentinels", "quorum")
        )
        if not flags:
            return None
        gone = [
            name for name, flag in zip(names, flags, strict=False) if "down" in flag or "disconnected" in flag
        ]
        words = [f"What a Sentinel watches: {listed([printable(one) for one in names[:MAX_SHOWN]])}."]
        advice = []
        if gone:
            listed_names = listed([printable(one) for one in gone[:MAX_SHOWN]])
            words.insert(0, f"It sees as gone: {listed_names} (flags with s_down, o_down or disconnected).")
            advice.append(
                "see whether these run, and are reached from the Sentinel by the address it has; one that"
                " is gone for good: SENTINEL RESET NAME, at one Sentinel after another"
            )
        counts = [int(one[0]) for one in (others, quorum) if one and one[0].isdecimal()]
        if len(counts) == 2 and counts[0] + 1 < max(counts[1], 2):
            words.append(
                f"It knows of {counts[0]} other Sentinels, and the quorum is {counts[1]}: it cannot switch to"
                " another master."
            )
            advice.append("at least three Sentinels that reach each other: SENTINEL CKQUORUM NAME")
        words.append("Synapse does not ask Sentinel: it stays with the address that it has.")
        return self.told(words, advice, "look" if advice else "")

    def _all(self, name: str) -> list[str]:
        """The values that come after this name."""
        pairs = zip(self.items, self.items[1:], strict=False)
        return [str(value) for key, value in pairs if key == name]


class _Spikes(_Listed):
    """What LATENCY LATEST printed: of each event its name, when, how many ms last, and at most."""

    kind = "redis_commands"
    command = "redis-cli latency latest"
    asks = "latency latest"

    def passage(self) -> Passage | None:
        spikes = {
            str(name): most
            for name, (_, _, most) in (
                (self.items[at], self.items[at + 1 : at + 4]) for at in range(0, len(self.items) - 3, 4)
            )
            if isinstance(most, int)
        }
        known = [
            (most, name, *one[1:])
            for name, most in spikes.items()
            for one in EVENTS
            if name.startswith(one[0])
        ]
        if not known:
            return None
        words = [
            f"Redis stood still for up to {most} ms, as {means} ({printable(name)})."
            for most, name, means, _ in known
        ]
        return self.told(
            [*words, "All who ask it wait meanwhile."], list(dict.fromkeys(one[-1] for one in known)), "look"
        )


class _Memory(_Listed):
    """What MEMORY STATS printed: a name and a number each."""

    kind = "redis_info"
    command = "redis-cli memory stats"
    asks = "memory stats"

    def passage(self) -> Passage | None:
        given = {name: value for name, value in self.pairs.items() if isinstance(value, int)}
        total = given.get("total.allocated", 0)
        if not total:
            return None
        words = [
            f"Memory of a Redis: {size(total)}, at most {size(given.get('peak.allocated', total))} so far."
        ]
        buffers = {
            name: given.get(name, 0) for name in ("clients.normal", "clients.slaves", "replication.backlog")
        }
        name, most = max(buffers.items(), key=lambda one: one[1])
        if most < max(MUCH, total // 2):
            return self.told(words, [], "")
        words.insert(0, f"Most of it is {name} ({size(most)}): what waits for connections, and no data.")
        return self.told(words, [f"redis-cli CLIENT LIST, the largest omem or tot-mem; {RAISE}"], "look")


LONG: Final = 10_000
"""From how many microseconds on a command takes long: Redis' own limit, if it has no other."""


class _Slow(_Listed):
    """What SLOWLOG GET printed: of each entry a number, when, how many microseconds, and the command."""

    kind = "redis_commands"
    command = "redis-cli slowlog get"
    asks = "slowlog get"

    def passage(self) -> Passage | None:
        slow = [
            (took, printable(name.upper()[:40]))
            for (*_, took), name in (
                (self.items[at : at + 3], self.items[at + 3]) for at in range(len(self.items) - 3)
            )
            if isinstance(took, int) and isinstance(name, str) and isinstance(self.items[0], int)
        ]
        if not slow:
            return None
        took, name = max(slow)
        if took < LONG:
            words = [f"No command in this SLOWLOG took {LONG // 1000} ms; the longest: {name}, {took} µs."]
            return self.told(words, [], "")
        return self.told(
            [
                (
                    f"Commands on which a Redis worked long; the longest: {name}, {took / 1000:,.1f} ms. It"
                    " does one at a time, and all others wait for it."
                ),
                (
                    "What Synapse asks (PUBLISH, GET, SET, PING) takes well below a millisecond: where these"
                    " are in the list, the machine is too busy, or swaps; others (KEYS, SCAN, FLUSHALL) are"
                    " of another program."
                ),
            ],
            ["redis-cli INFO commandstats, CLIENT LIST: who sends them; give Synapse a Redis of its own"],
            "look",
        )


class _Setting(NamedTuple):
    """A setting of Redis: what is said of its value, what to do about it, and whether it is worth a look."""

    means: str
    advice: str = ""
    is_odd: Callable[[str], bool] = lambda _: False


_SETTINGS: Final = {
    "timeout": _Setting(
        "connections that ask nothing for so many seconds are closed (0: never), but none with a"
        " subscription. A process of Synapse sends a PING every 30 seconds on each of its two connections"
        " (1.27 and newer)",
        "raise it above 60, or set 0: below 30 the connections on which processes publish are closed again"
        " and again",
        lambda value: value.isdecimal() and 0 < int(value) <= 30,
    ),
    "tcp-keepalive": _Setting(
        "after so many silent seconds Redis asks whether the other side is still there. A firewall or NAT"
        " that forgets connections sooner cuts them without a word: a process of Synapse notices by its PING"
        " every 30 seconds (1.27 and newer), connects again, and asks for what it missed"
    ),
    "maxclients": _Setting(
        "so many connections are taken: each process of Synapse has two, and one more for what it caches"
        " there"
    ),
    "maxmemory": _Setting(
        "so many bytes may be used, buffers for slow readers among them (0: no limit)",
    ),
    "maxmemory-policy": _Setting(
        "what happens at maxmemory: with noeviction new values are refused (OOM), with others old ones are"
        " removed. Synapse keeps nothing there that it needs: each value has a time to live, and is computed"
        " anew. No policy drops what is published",
    ),
    "client-output-buffer-limit": _Setting(
        "how much may wait for a connection until it has read it: the last part, pubsub, is that of Synapse's"
        " processes: closed at once above the first number of bytes, or above the second for so many seconds."
        " The process connects again, and fetches what it missed"
    ),
    "stop-writes-on-bgsave-error": _Setting(
        "with yes, a Redis that cannot save refuses writes and PING (MISCONF), and processes of Synapse lose"
        " their connection",
        "Synapse needs nothing that Redis saves: CONFIG SET save '' and CONFIG SET"
        " stop-writes-on-bgsave-error no",
        lambda value: value == "yes",
    ),
    "save": _Setting(
        "when Redis writes its data to the disk (empty: never). Synapse needs nothing of it",
    ),
    "appendonly": _Setting("whether each change is written to the disk. Synapse needs nothing of it"),
    "min-replicas-to-write": _Setting(
        "with fewer copies than that, Redis refuses writes (NOREPLICAS)",
        "set 0: what Synapse keeps there needs no copy",
        lambda value: value.isdecimal() and int(value) > 0,
    ),
    "protected-mode": _Setting(
        "with yes and without a password, Redis takes connections of its own machine alone",
        "set a password (requirepass, and redis: password of Synapse) before it is switched off",
    ),
    "bind": _Setting(
        "the addresses at which Redis listens: with 127.0.0.1 alone, processes in other containers do not"
        " reach it"
    ),
    "dir": _Setting(
        "the folder into which Redis saves its data. Synapse needs nothing of it",
        INTRUSION,
        lambda value: is_planted("", value),
    ),
    "dbfilename": _Setting(
        "the name of the file into which Redis saves its data. Synapse needs nothing of it",
        INTRUSION,
        lambda value: is_planted(value, ""),
    ),
    "replica-read-only": _Setting("a replica takes no writes; what is published there reaches it alone"),
    "cluster-enabled": _Setting(
        "with yes it is a node of a Redis Cluster, whose parts a client must know. Synapse's does not",
        "give Synapse a Redis that is no cluster",
        lambda value: value == "yes",
    ),
    "databases": _Setting("so many are there; channels are the same in all of them, dbid does not part them"),
    "notify-keyspace-events": _Setting("Redis publishes changes of keys. Synapse does not listen to these"),
}
"""Settings of Redis that people show, by their names."""
_HIDDEN: Final = ("requirepass", "masterauth")


class _Config(_Listed):
    """The settings in the output of CONFIG GET so far."""

    kind = "redis_info"
    command = "redis-cli config get"
    asks = "config get"

    def passage(self) -> Passage | None:
        given = {name.lower(): str(value) for name, value in self.pairs.items()}
        known = {name: value for name, value in given.items() if name in _SETTINGS}
        if not known:
            others = [printable(name) for name in given if name not in _HIDDEN][:MAX_NUMBERS]
            return self.told([f"Settings of a Redis: {listed(others)}."], [], "") if others else None
        words = [
            f"{name} is {printable(value[:200]) or 'empty'}: {_SETTINGS[name].means}."
            for name, value in known.items()
        ]
        odd = [name for name, value in known.items() if _SETTINGS[name].is_odd(value)]
        advice = [_SETTINGS[name].advice for name in odd if _SETTINGS[name].advice]
        if planted := [name for name in odd if _SETTINGS[name].advice == INTRUSION]:
            where = listed([f"{name} is {printable(known[name][:200])}" for name in planted])
            words.insert(0, f"{OPEN_TO_ALL} The place where it saves its data was changed ({where}).")
            return self.told(words, list(dict.fromkeys(advice)), "error")
        return self.told(words, advice, "look" if odd else "")


_OF_FILE: Final = re.compile(r"\s*(?P<name>[a-z-]{4,40}) (?P<value>[^#\n]{1,200}?)\s*\Z")
"""A line of redis.conf."""


def _of_file(line: str, *, is_among: bool) -> tuple[str, str] | None:
    """Return the setting in a line of redis.conf: one whose name is a word only among others."""
    found = _OF_FILE.match(line[:300])
    if found is None or found["name"] not in _SETTINGS or not (is_among or "-" in found["name"]):
        return None
    return found["name"], found["value"].strip('"')


class RedisLists:
    """All lists in a text: each is below the command that it answers."""

    def __init__(self) -> None:
        kinds = (
            *(_Numsub(), _Channels(), _Published(), _Config(), _AclRefusals(), _Users(), _Watched(), _Slow()),
            *(_Spikes(), _Memory(), _Role()),
        )
        self._kinds: dict[str, _Listed] = {one.asks: one for one in kinds}
        self._asked: _Listed | None = None

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is such a command, or of its list."""
        config = self._kinds["config get"]
        if setting := _of_file(line, is_among=self._asked is config):
            config.items = [*config.items, *setting]
            config.add(number)
            self._asked = config
            return True
        head = line[:600].lower()
        asked = _ASKED.match(head.strip()) if any(one in head for one in _WORDS) else None
        if asked is not None:
            what = asked["what"].lower()
            self._asked = self._kinds.get(what) or self._kinds[what.partition(" ")[0]]
            self._asked.add(number)
        else:
            if self._asked is None and _A_USER.match(line[:300]):
                self._asked = self._kinds["acl list"]
            if self._asked is not None and not self._asked.takes(line, number):
                self._asked = None
        return self._asked is not None

    def passages(self) -> list[Passage]:
        """What is said of each list."""
        return [found for one in self._kinds.values() for found in one.passages()]
