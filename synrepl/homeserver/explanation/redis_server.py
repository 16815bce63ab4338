"""What a Redis server logs of a client that it cut off, of a copy, and of somebody who broke into it."""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from synrepl.homeserver.explanation.message_passage import Detail, passage_of
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.results import Passage
from synrepl.homeserver.explanation.tokens import Writers
from synrepl.html.humanize import counted
from synrepl.wire.text import printable

BROKEN_INTO: Final = "redis_broken_into"
"""The kind of a passage about a Redis into which somebody wrote from outside."""

_CLOSE_IT: Final = (
    "close its port to all other networks at once (bind, firewall, ports: of the container), and set"
    " requirepass, and redis: password in homeserver.yaml"
)
_LEFT_THERE: Final = (
    "look for what was left: authorized_keys of each user, crontab -l, /etc/cron.d, /var/spool/cron,"
    " processes that nobody knows, MODULE LIST, ACL LIST. Better set the host, or the container, up anew, and"
    " change all passwords and keys that lay there, those of homeserver.yaml too"
)
_SET_BACK: Final = (
    "set Redis back: CONFIG GET dir, CONFIG GET dbfilename, and CONFIG SET both to what they were (/data, or"
    " /var/lib/redis; dump.rdb), or start it anew if its file was not rewritten. Synapse needs nothing that"
    ' it saves: CONFIG SET save ""'
)
OPEN_TO_ALL: Final = (
    "Somebody could write to this Redis without a password, and did: treat the server as broken into,"
    " whatever became of this one attempt."
)

INTRUSION: Final = f"{_CLOSE_IT}; {_LEFT_THERE}; {_SET_BACK}"
"""What to do about a Redis into which somebody broke."""

_PLANTED_NAME: Final = re.compile(
    r"authorized_keys2?|crontabs?|root|passwd|shadow|sudoers|backup\.db|.{1,200}\.(?:so|php|jsp|aspx?|sh)"
)
"""Names of a file of data that are those of a key, a job, a module or a page."""
_PLANTED_FOLDER: Final = re.compile(
    r"/etc/(?:cron|init|profile|systemd|sudoers)|/etc/?\Z|cron|/\.ssh\b|/var/www\b|/usr/share/nginx\b"
)
_RDB: Final = ".rdb"


def is_planted(name: str, folder: str) -> bool:
    """Whether a file of data by that name, in that folder, is one that an attack leaves there."""
    if _PLANTED_NAME.fullmatch(name):
        return True
    return _PLANTED_FOLDER.search(folder) is not None and not name.endswith(_RDB)


_CLIENT: Final = re.compile(
    r"\bflags=(?P<flags>[A-Za-z]{1,12}) .{0,300}?\bsub=(?P<sub>\d{1,9})\b"
    r"(?:.{0,300}?\bomem=(?P<waiting>\d{1,15})\b)?"
)
_LIMIT: Final = "CONFIG SET client-output-buffer-limit"


def _cut_off(match: Match, writers: Writers) -> Passage | None:
    """Explain a client that was cut off by what it is: a copy, a subscriber, or one that only asks."""
    if (found := _CLIENT.search(match.text)) is None:
        return None
    waiting = f" ({counted(int(found['waiting']), 'byte')} waited: omem)" if found["waiting"] else ""
    flags = found["flags"]
    if ("S" in flags or "M" in flags) and "O" not in flags:
        words = [
            (
                f"Redis cut off a copy of itself (flags={flags}: a replica): what waited for it in memory"
                f"{waiting} passed client-output-buffer-limit of replicas, which is 256 MB, or 64 MB for a"
                " minute, if not set. The replica begins to copy again; with much data, or much traffic while"
                " it copies, it is cut off again, and never gets done."
            ),
            "No process of Synapse was cut off, and the network, the disk and the password are no cause.",
        ]
        advice = [
            (
                f'raise the limit above what is written while a copy is made: {_LIMIT} "replica 512mb 128mb'
                ' 60" (slave in place of replica before Redis 5), and the same line in redis.conf of the'
                " primary; the machine must have that memory"
            ),
            (
                "repl-backlog-size 256mb lets a copy that was away for a while go on without beginning again."
                " Or do without a copy: Synapse keeps nothing in Redis that it needs, and speaks with the"
                " primary alone"
            ),
        ]
        return passage_of(match, words, advice, [])
    if "P" in flags or found["sub"] != "0":
        return passage_of(
            match,
            [match.message.means.replace("of a client", f"of a client{waiting}", 1)],
            [match.message.do],
            [],
        )
    words = [
        (
            "Redis closed the connection of a client that asked for more than it read in time"
            f" (flags={flags}: no subscription, no replica){waiting}: a MONITOR that was left open, or"
            " another program with large answers. A process of Synapse receives over another connection,"
            " which was not cut off."
        )
    ]
    advice = [
        (
            "see what it is by addr, name and cmd in the line. A limit of the class normal is set here (none"
            f' if not set): CONFIG GET client-output-buffer-limit; {_LIMIT} "normal 0 0 0" lifts it'
        )
    ]
    return passage_of(match, words, advice, [])


_FILE: Final = re.compile(
    r"(?:RDB file|final destination) (?P<name>\S{1,255})(?: \(in server root dir (?P<folder>[^)]{0,300})\))?"
)


def _not_saved(match: Match, writers: Writers) -> Passage | None:
    """Explain a file that was not saved and whose name or folder is none of Redis: an attack set it."""
    found = _FILE.search(match.text)
    if found is None or not is_planted(found["name"], found["folder"] or ""):
        return None
    name = printable(found["name"])
    where = f" in {printable(found['folder'])}" if (found["folder"] or "").startswith("/") else ""
    words = [
        (
            f"{OPEN_TO_ALL} The place where it saves its data was changed to the file {name}{where} (CONFIG"
            " SET dir, dbfilename): so is a key, a job or a program planted on a server."
        ),
        (
            "The save failed, and since then Redis is read but not written (MISCONF), and refuses what"
            " Synapse writes: rights and disk are not the cause, and stop-writes-on-bgsave-error off cures"
            " nothing."
        ),
    ]
    return _broken_into(match, words, [_CLOSE_IT, _LEFT_THERE, _SET_BACK])


def _broken_into(match: Match, words: list[str], advice: list[str]) -> Passage:
    passage = passage_of(match, words, advice, [])
    return msgspec.structs.replace(passage, kind=BROKEN_INTO, severity="error")


_TOOL: Final = re.compile(r"(?:exp|exp_lin|red\d?|redis_?rce|module|system|sys)\.so|.{0,200}rogue.{0,200}")
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
_MODULE: Final = re.compile(
    r"Module '?(?P<name>[^' ]{1,255})'? (?:loaded from (?P<path>\S{1,300})|failed to load|could not be)"
)


def _module(match: Match, writers: Writers) -> Passage | None:
    """Explain a module by its file: one of a tool that breaks in, or none that is known as such."""
    if (found := _MODULE.search(match.text)) is None:
        return None
    path = PurePosixPath(found["path"] or found["name"])
    is_of_tool = _TOOL.fullmatch(path.name) is not None or str(path.parent) in _TEMPORARY
    if not (is_of_tool or (is_planted(path.name, str(path.parent)) and str(path.parent) == ".")):
        return None
    words = (
        f"{OPEN_TO_ALL} A module was given to this Redis from the file {printable(str(path))}: so are"
        " commands of the system run through a Redis."
    )
    return _broken_into(match, [words], [_CLOSE_IT, _LEFT_THERE, "redis-cli MODULE LIST, MODULE UNLOAD NAME"])


_ADDRESS: Final = re.compile(r"(?:MASTER|PRIMARY|REPLICAOF|SLAVEOF|SLAVE OF) (?P<address>[\da-fA-F.:]{7,45})")


def _copy(match: Match, writers: Writers) -> Passage | None:
    """Explain a Redis that is made a copy of one at an address of the internet."""
    found = _ADDRESS.search(match.text)
    address = found["address"] if found else ""
    try:
        host = ipaddress.ip_address(address.rpartition(":")[0] if address.count(":") == 1 else address)
    except ValueError:
        return None
    if not host.is_global:
        return None
    words = [
        (
            f"This Redis was made a copy of one at {host}, an address of the internet. If that is none of"
            " yours, somebody could write here without a password: treat the server as broken into; such a"
            " master sends a program (a module) in place of data."
        ),
        match.message.means,
    ]
    return passage_of(match, words, [match.message.do, f"if it is none of yours: {_LEFT_THERE}"], [])


_SPIKES: Final = re.compile(
    r"(?P<event>[a-z][a-z-]{2,40}): (?P<count>\d{1,9}) latency spikes \(average (?P<took>\d{1,9}) ?ms"
)
EVENTS: Final = (
    ("fork", "it copied its tables of memory to save, or for a replica", 'Synapse needs no saves: save ""'),
    ("aof", "it waited for the disk (append-only file)", "Synapse needs no such file: appendonly no"),
    ("rdb", "it waited for the disk (a save)", 'Synapse needs no saves: save ""'),
    (
        "command",
        "it worked on one slow command",
        (
            "redis-cli SLOWLOG GET names it, and CLIENT LIST who sends it: what Synapse asks takes well below"
            " a millisecond, so that it is of another program, or the machine is too busy or swaps"
        ),
    ),
    ("fast-command", "fast commands took long", "see whether its machine is too busy, or swaps"),
    ("expire", "it removed what had run out", "another program lets many keys run out at once"),
    ("eviction", "it removed values for want of memory", "raise maxmemory; give Synapse its own Redis"),
    ("active-defrag", "it tidied its memory", "CONFIG SET activedefrag no"),
)
"""How what stops Redis is called, what it is, and what to do."""


def _latency(match: Match, writers: Writers) -> Passage | None:
    """Explain how often Redis stood still by what it was busy with."""
    found = _SPIKES.search(match.text)
    event = next((one for one in EVENTS if found and found["event"].startswith(one[0])), None)
    if found is None or event is None:
        return None
    _, means, step = event
    words = (
        f"Redis stood still {counted(int(found['count']), 'time')}, for {found['took']} ms each on average,"
        f" as {means} ({found['event']}). All who ask it wait meanwhile."
    )
    return passage_of(match, [words], [step], [])


DETAILS: Final[Mapping[str, Detail]] = {
    "redis_too_slow": _cut_off,
    "redis_save_failed": _not_saved,
    "redis_module": _module,
    "redis_latency": _latency,
    "redis_made_replica": _copy,
    "redis_follows": _copy,
}
"""What explains messages by their values, by the key of the message."""
