"""The tries of transactions of the database: which were repeated, and which of them failed for good.

Synapse logs each failure with the transaction's name and the number of the try: from 0/5 to 5/5 in 1.135 and
older, from 1/5 to 5/5 in 1.150 and newer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.faults import find_fault, is_of_fault, with_fault
from synrepl.homeserver.explanation.messages import Match
from synrepl.homeserver.explanation.pasted_lines import Header
from synrepl.homeserver.explanation.results import MAX_NUMBERS, Passage
from synrepl.wire.text import printable

MESSAGES: Final = frozenset(("txn_retry", "txn_retry_mid", "txn_retry_old"))
"""Messages of a try that failed."""

USED_UP: Final = "txn_used_up"
"""The kind of a passage of a transaction of which all tries failed."""

TRIES: Final = 6
"""So many lines of one transaction are all its tries, in every release."""

LAST: Final = 5
"""The number of the last try, in every release."""

MANY: Final = 3
"""So many transactions of one name that failed may be all of them."""

MAX_KEPT: Final = 1000
"""Of so many transactions the tries are counted: the last ones."""

_MAX_TOLD: Final = 10
_NUMBER: Final = re.compile(r"\b([0-5])/5\s*\Z", re.ASCII)
"""The number of a try, at the end of a line that was not broken."""
_RACE: Final = re.compile("could not serialize|deadlock")
"""Reasons that PostgreSQL gives before anything is stored."""
_REQUEST: Final = re.compile(r"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH)-\d+", re.ASCII)
_OF_ACCOUNT: Final = re.compile(r"\w*account_data\w*|(?:add|remove)_tag\w*", re.ASCII)
_OF_MANY: Final = re.compile(
    r"\w*(?:presence|receipt|device|client_ips|last_seen|event_push|destination|one_time_key)\w*", re.ASCII
)
"""Transactions that many requests make at once, on rows that they share."""

OFTEN: Final = (
    "a few are normal, and now and then many: many requests at once write such rows. Look into it where"
    f" tries are used up (a line with {LAST}/5), or where that name comes on and on: update"
)
BY_ONE: Final = (
    "two clients, or two processes of a bot, write the account data of one user at the same moment: let one"
    " of them write, or repeat the request after a pause of some seconds"
)
BY_SEVERAL: Final = (
    "repeat what failed after a pause. Where it comes again and again, see who writes the same rows at the"
    " same moment, as two clients or bots of one user, and update, as a fault of the release may be behind it"
)
AFTERWARDS: Final = "repeat what failed once that is mended"
_GENERAL: Final = "a few are normal."
"""What is to be done about lost races in general begins so."""
_REPEATS: Final = " Synapse repeats it."
"""The end of what a lost race means, where it was repeated."""


STORED: Final = "Nothing of it is stored, and nothing is left half done: each try was rolled back."
UNSTORED: Final = "What failed is rolled back, so that nothing is left half done."


class _Tries(msgspec.Struct):
    """The tries of one transaction that failed: the first lines that tell of them, and the last reason.

    `count` are the tries of which it tells, `first` is the number of the first one, `seen` are all lines, and
    `alike` the transactions of this description.
    """

    name: str
    request: str
    reason: str = ""
    lines: list[int] = []
    times: list[str] = []
    count: int = 0
    first: int = 1
    seen: int = 0
    alike: int = 1

    @property
    def description(self) -> str:
        """What it does: its name without its number."""
        return self.name.rpartition("-")[0] or self.name

    def add(self, number: int, time: str, reason: str, place: int | None) -> None:
        """Add a line, and the number of the try in it. What is logged to two places is one try."""
        if not (time in self.times and ("," in time or "." in time)):
            self.count += 1
            self.times.append(time)
        if place is not None:
            self.first = min(self.first, place)
            self.count = max(self.count, place + 1 - self.first)
        self.seen += 1
        self.lines = [*self.lines, number][:MAX_NUMBERS]
        self.reason = reason

    def add_alike(self, other: "_Tries") -> None:
        """Add another transaction of the same description."""
        self.alike += 1
        self.seen += other.seen
        self.lines = [*self.lines, *other.lines][:MAX_NUMBERS]
        self.times = [self.times[0], other.times[-1]]


class Retries:
    """Counts the failed tries of each transaction in a text."""

    def __init__(self) -> None:
        self._tries: dict[tuple[str, str], _Tries] = {}
        self._used_up: dict[str, _Tries] = {}
        self._failed = self._lines = 0

    def see(self, match: Match, header: Header, number: int) -> None:
        """Count the try of which a line tells, if it is one."""
        if match.message.key not in MESSAGES or "TXN EROLL" in match.text:
            return
        name = match.values[0] if match.values else ""
        key = (header.request, name)
        tries = self._tries.pop(key, None) or _Tries(name, header.request)
        self._tries[key] = tries
        if len(self._tries) > MAX_KEPT:
            self._tries.pop(next(iter(self._tries)))
        self._lines += 1
        place = _NUMBER.search(match.text)
        reason = match.values[-1] if "OPERROR" in match.text else "deadlock detected"
        tries.add(number, header.time, reason, int(place[1]) if place else None)
        if tries.count >= TRIES or (place and int(place[1]) == LAST):
            # Its number comes again with another transaction, after a long time.
            self._tries.pop(key)
            self._failed += tries.seen
            if (first := self._used_up.get(tries.description)) is not None:
                first.add_alike(tries)
            elif len(self._used_up) < _MAX_TOLD:
                self._used_up[tries.description] = tries

    def told(self, passages: Sequence[Passage]) -> list[Passage]:
        """Say of the transactions what became of them."""
        if not self._used_up:
            return [self._with_repeats(one) for one in passages]
        reasons = [one for one in passages if one.kind in MESSAGES and not is_of_fault(one)]
        others = [one for one in passages if one.kind not in MESSAGES or self._failed < self._lines]
        return [*others, *(self._passage(one, reasons) for one in self._used_up.values())]

    def _with_repeats(self, passage: Passage) -> Passage:
        """Say which transaction failed most often, as the text does not tell how its last try ended."""
        most = max(self._tries.values(), key=lambda one: one.count, default=None)
        if passage.kind not in MESSAGES or most is None:
            return passage
        told = []
        if most.count > 1:
            told = [
                (
                    f"The transaction {printable(most.name[:200])} failed at least {most.count} times in a"
                    " row. The text does not tell how its last try ended: if all failed, an ERROR with the"
                    " exception comes after it."
                )
            ]
        alike = Counter(one.description for one in self._tries.values())
        told += [
            f"{count} transactions {printable(name[:200])} failed at least once: if nearly all of that name"
            " do, what they do does not go on."
            for name, count in alike.most_common(1)
            if count >= MANY
        ]
        return msgspec.structs.replace(passage, words=[*passage.words, *told])

    def _passage(self, tries: _Tries, reasons: Sequence[Passage]) -> Passage:
        name, request = printable(tries.name[:200]), printable(tries.request[:200])
        if _REQUEST.fullmatch(tries.request):
            what = f"The request {request} failed with it, and was answered with an error 500"
        elif request:
            what = f"What it was done for ({request}) failed with it"
        else:
            what = "What it was done for failed with it"
        is_race = _RACE.search(tries.reason) is not None
        of_it = [one for one in reasons if any(word.startswith(tries.reason[:20]) for word in one.words)]
        told = [word for one in of_it or reasons for word in one.words[1:] if _is_of_all(word)]
        words = [
            f"All tries of the transaction {name} were used up.",
            f"{what}. {STORED if is_race else UNSTORED}",
            *dict.fromkeys(word.removesuffix(_REPEATS) for word in told),
        ]
        if tries.alike > 1:
            words.insert(1, f"So it went with {tries.alike} transactions of that name in this text.")
        steps = [step for one in of_it or reasons for step in one.advice if not step.startswith(_GENERAL)]
        race = BY_ONE if _OF_ACCOUNT.match(tries.name) else BY_SEVERAL
        passage = Passage(
            kind=USED_UP,
            severity="error",
            text=printable(f"{{{tries.name}}} {tries.reason}"[:300]),
            words=words,
            advice=list(dict.fromkeys([race, *steps] if is_race else [*steps, AFTERWARDS])),
            lines=tries.lines,
            count=tries.seen,
            first_time=tries.times[0],
            last_time=tries.times[-1],
        )
        fault = find_fault([f"{tries.name} {tries.reason}"], ())
        return passage if fault is None else with_fault(passage, fault)


def _is_of_all(word: str) -> bool:
    return not word.startswith("Logged by ")


def advice_of(name: str, advice: Sequence[str]) -> list[str]:
    """Return what to do about a transaction that was repeated, by its name, where it lost a race."""
    if _OF_ACCOUNT.match(name):
        step = f"a few are normal. Many: {BY_ONE}"
    elif _OF_MANY.match(name):
        step = OFTEN
    else:
        return list(advice)
    return list(dict.fromkeys(step if one.startswith(_GENERAL) else one for one in advice))
