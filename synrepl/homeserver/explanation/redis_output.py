"""What redis-cli prints of a homeserver's Redis: CLIENT LIST and MONITOR, lists, and INFO.

Docs: docs/howto/explain.md.
"""

import re
from collections import Counter
from collections.abc import Collection
from typing import Final

import msgspec

from synrepl.homeserver.explanation.redis_info import RedisInfo
from synrepl.homeserver.explanation.redis_lists import RedisLists
from synrepl.homeserver.explanation.redis_printed import (
    MAX_KEPT,
    MAX_SHOWN,
    MUCH,
    OF_SYNAPSE,
    RAISE,
    RedisPrinted,
)
from synrepl.homeserver.explanation.results import Passage
from synrepl.html.humanize import counted, listed
from synrepl.wire.text import printable

_CLIENT: Final = re.compile(
    r"(?P<client>id=\d{1,20} addr=\S{1,200}) .{0,600}\bsub=(?P<sub>\d{1,9}) psub=(?P<psub>\d{1,9}) "
    r"(?:.{0,200}\bqbuf=(?P<sent>\d{1,12})\b)?"
    r"(?:.{0,600}\bomem=(?P<waiting>\d{1,12})\b)?(?:.{0,300}\bcmd=(?P<last>[a-z|_]{1,40}))?",
    re.ASCII,
)


class _Clients(RedisPrinted):
    """The connections in a text so far, and how many of them have a subscription.

    `clients` are those by id and address, as one may be in several outputs, and `others` how many lines
    there are beyond these. `waiting` are the most bytes that wait for one that receives (omem), `left` those
    of the last line of the same one, and `watching` those for one with MONITOR.
    """

    kind = "redis_clients"
    command = "redis-cli client list"
    clients: dict[str, bool] = {}
    others: int = 0
    receiving: int = 0
    waiting: int = 0
    largest: str = ""
    left: int = 0
    watching: int = 0
    sent: int = 0

    def takes(self, line: str, number: int) -> bool:
        found = _CLIENT.match(line.strip("> \t"))
        if found is None:
            return False
        self.add(number)
        is_subscribed = found["sub"] != "0" or found["psub"] != "0"
        client, waiting = found["client"], int(found["waiting"] or 0)
        self.sent = max(self.sent, int(found["sent"] or 0))
        if client in self.clients or len(self.clients) < MAX_KEPT:
            self.clients[client] = is_subscribed or self.clients.get(client, False)
        else:
            self.others += 1
            self.receiving += is_subscribed
        if client == self.largest:
            self.left = waiting
        if is_subscribed and waiting > self.waiting:
            self.waiting = self.left = waiting
            self.largest = client
        elif not is_subscribed and found["last"] == "monitor":
            self.watching = max(self.watching, waiting)
        return True

    @property
    def subscribed(self) -> int:
        """How many of the connections have a subscription."""
        return self.receiving + sum(self.clients.values())

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        count = len(self.clients) + self.others
        all_of_them = counted(count, "connection")
        told = f"{all_of_them} to Redis, of which {self.subscribed} receive (sub of 1 or more);"
        words = [
            f"{told} the others only send, or are of other programs. A process of Synapse has one of each."
        ]
        if count < self.count:
            words.append(f"They are in {self.count} lines: one with the same id and addr is the same one.")
        advice = ["compare the number that receive with that of the processes: synrepl inspect"]
        if not self.subscribed:
            words.insert(
                0,
                "No connection here is subscribed: if this is the whole list, no process receives anything"
                " over this Redis.",
            )
            advice = [
                (
                    "if the list was cut, or is of CLIENT INFO, paste all of redis-cli CLIENT LIST. Else see"
                    " in the log of each process whether it was subscribed, and restart it; compare redis: in"
                    " the files of all: synrepl inspect --files"
                )
            ]
        elif self.waiting >= MUCH:
            end = (
                f" In its last line here {self.left} wait: it had read them, or nearly all."
                if self.left < self.waiting // 2
                else ""
            )
            words.insert(
                0,
                f"Much waits for a connection that receives: {self.waiting} bytes (omem; oll is in how many"
                f" pieces), {printable(self.largest)}. It reads slowly, or was sent much at once.{end}"
                " Redis closes it at client-output-buffer-limit pubsub (32 MB, or 8 MB for a minute,"
                " if not set): what waits is then not delivered; a process of Synapse connects again, and"
                " fetches what it missed.",
            )
            advice = [
                (
                    "see whether omem of it falls again: if not, find its process by addr, and why it does"
                    f" not read in time (CPU of one core); {RAISE}"
                )
            ]
        if self.watching >= MUCH:
            words.insert(
                0,
                f"A MONITOR is open, and {self.watching} bytes wait for it: only client-output-buffer-limit"
                " normal bounds that, which is 0 (no limit) if not set.",
            )
            advice.insert(0, "end it: redis-cli CLIENT KILL ID of that connection")
        if self.sent >= MUCH:
            words.insert(
                0,
                f"A client has sent {self.sent} bytes that Redis has not handled yet (qbuf): one large value"
                " or many commands at once. Of each connection up to client-query-buffer-limit (1 GB) is kept"
                " beside the data; what Synapse sends is small.",
            )
            advice.insert(0, "find the program by addr: smaller values, fewer at once")
        is_odd = max(self.waiting, self.watching, self.sent) >= MUCH
        return self.told(words, advice, "error" if not self.subscribed else "look" if is_odd else "")


_COMMAND: Final = re.compile(
    r"(?:\A|\s)\d{9,11}\.\d{6} \[\d{1,5} (?P<client>(?:\[[^\]]{1,100}\])?[^\]]{1,200})\]"
    r" \"(?P<name>\w{1,40})\"(?P<rest>(?: \".*)?)\Z",
    re.ASCII,
)
_ARGUMENT: Final = re.compile(r' "((?:[^"\\]|\\.)*)"')
_VERB: Final = re.compile(r"[A-Z_]{4,40}(?= |\Z)", re.ASCII)

_REST: Final = "others"
_CACHED: Final = "cache_v1:"
"""How the keys begin that Synapse's processes share."""


def _kept(name: str, among: Collection[str]) -> str:
    return name if name in among or len(among) < MAX_KEPT else _REST


class _Commands(RedisPrinted):
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
        self.add(number)
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
        return self.told(words, advice, "look" if advice else "")


_NODE: Final = re.compile(
    r"[\da-f]{40} (?P<place>\S{0,300}) (?P<flags>[a-z,?]{1,80}) (?:-|[\da-f]{40}) \d{1,20} \d{1,20}"
    r" (?P<epoch>\d{1,9}) (?P<link>connected|disconnected)",
    re.ASCII,
)
MANY_EPOCHS: Final = 10
"""So many times as many epochs as masters tell of masters that change again and again."""


class _Nodes(RedisPrinted):
    """The nodes of a Redis Cluster in a text so far: those that are masters, copies, or gone."""

    kind = "redis_nodes"
    command = "redis-cli cluster nodes"
    masters: set[str] = msgspec.field(default_factory=set)
    copies: set[str] = msgspec.field(default_factory=set)
    gone: set[str] = msgspec.field(default_factory=set)
    epoch: int = 0

    def takes(self, line: str, number: int) -> bool:
        found = _NODE.match(line.strip("> \t"))
        if found is None:
            return False
        self.add(number)
        place, flags = found["place"].partition("@")[0], found["flags"].split(",")
        kept = self.masters if "master" in flags else self.copies
        if len(kept) < MAX_KEPT:
            kept.add(place)
        is_gone = found["link"] == "disconnected" and "myself" not in flags
        if (is_gone or {"fail", "fail?", "noaddr", "handshake"} & {*flags}) and len(self.gone) < MAX_KEPT:
            self.gone.add(place)
        self.epoch = max(self.epoch, int(found["epoch"]))
        return True

    def passage(self) -> Passage | None:
        if not self.count:
            return None
        masters = counted(len(self.masters), "master")
        told = f"Nodes of a Redis Cluster: {masters}, and {len(self.copies)} that copy one."
        words = [f"{told} What is published at one of them, all pass on."]
        advice = ["Synapse's client knows no cluster: give Synapse a Redis of its own that is none"]
        if self.gone:
            names = listed(
                [printable(one) or "one without an address" for one in sorted(self.gone)[:MAX_SHOWN]]
            )
            words.insert(0, f"Nodes that this one does not reach: {len(self.gone)}, as {names}.")
            advice.insert(
                0,
                "see whether these run, and whether their ports, and those + 10000, are open between all"
                " nodes; CLUSTER FORGET ID, at each node, for one that is gone for good",
            )
        is_unsteady = self.epoch > MANY_EPOCHS * max(1, len(self.masters))
        if is_unsteady:
            words.append(
                f"The epoch {self.epoch} counts the failovers and changes of slots so far: many for so few"
                " masters. Where nobody moved slots, nodes are taken for gone again and again."
            )
            advice.insert(
                0,
                "CONFIG GET cluster-node-timeout: 15000 (ms) if not set; with less than a few seconds a pause"
                " (a save, a slow command, the network) is taken for an end. The log of the nodes (FAIL,"
                " failing) tells when",
            )
        return self.told(words, advice, "look" if self.gone or is_unsteady else "")


class RedisOutput:
    """Whatever redis-cli printed in a text."""

    def __init__(self) -> None:
        self._kinds = (_Clients(), _Nodes(), _Commands(), RedisLists(), RedisInfo())

    def takes(self, line: str, number: int) -> bool:
        """Whether a line is of any output, and needs no other explanation."""
        return any(one.takes(line, number) for one in self._kinds)

    def passages(self) -> list[Passage]:
        """What is said of each output."""
        return [found for one in self._kinds for found in one.passages()]
