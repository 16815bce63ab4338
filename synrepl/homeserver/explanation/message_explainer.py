"""The explanation of one message: by its data, its values, and the reasons that it or its traceback gives."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from synrepl.homeserver.explanation.addresses import of_redis_client
from synrepl.homeserver.explanation.background_updates import told_of_unknown_update, unknown_update
from synrepl.homeserver.explanation.details import NOT_BY_DATA, explained
from synrepl.homeserver.explanation.duplicates import (
    IN_AN_UPDATE,
    IN_AN_UPGRADE,
    LIKELY_AN_UPGRADE,
    UPDATES,
    is_of_upgrade,
)
from synrepl.homeserver.explanation.exceptions import told_of_configuration, told_of_exception
from synrepl.homeserver.explanation.excerpts import excerpt
from synrepl.homeserver.explanation.federation import TO_OTHERS, with_reason_of_others
from synrepl.homeserver.explanation.messages import Match, find_reason
from synrepl.homeserver.explanation.misrouted_requests import (
    LACKS,
    REQUEST_FAILED,
    SERVED,
    failed_request,
    is_of_no_writer,
    to_main,
)
from synrepl.homeserver.explanation.pasted_lines import REDIS
from synrepl.homeserver.explanation.results import SEVERITIES, Passage
from synrepl.homeserver.explanation.retries import MESSAGES as RETRIES
from synrepl.homeserver.explanation.retries import advice_of
from synrepl.homeserver.explanation.sent_requests import with_push_answer
from synrepl.homeserver.explanation.tokens import Writers, span_text
from synrepl.homeserver.explanation.tracebacks import OF_ALL_TRANSACTIONS, with_frames
from synrepl.homeserver.explanation.worker_storage import ROW_NOT_TAKEN, TAKES_ROWS


def _in_place(passage: Passage, frames: Sequence[str], key: str = "", *, is_start: bool = False) -> Passage:
    """Say what a reason means where it ended an update of the database, at the start or in the background."""
    told: tuple[str, str] | None = None
    if passage.kind == "does_not_fit":
        told = told_of_configuration(frames) or (
            told_of_exception("TypeError", frames) if frames and _OF_VALUE.search(passage.text) else None
        )
    if key == TAKES_ROWS and passage.kind == LACKS:
        told = ROW_NOT_TAKEN
    elif key == "update_failed" or UPDATES in frames:
        told = IN_AN_UPDATE.get(passage.kind)
    elif is_of_upgrade(passage.text, frames):
        told = IN_AN_UPGRADE.get(passage.kind)
    elif is_start and OF_ALL_TRANSACTIONS.issuperset(frames) and passage.kind in IN_AN_UPGRADE:
        likely = IN_AN_UPGRADE[passage.kind]
        told = (f"{LIKELY_AN_UPGRADE} {likely[0]}", likely[1])
    if told is None:
        return passage
    return msgspec.structs.replace(passage, words=[told[0]], advice=[told[1]])


_OF_STARTS: Final = frozenset(("startup_failed", "start_refused"))
"""Messages of a start that failed, with the exception below them."""


def explain_message(
    match: Match,
    writers: Writers,
    reasons: Sequence[Match | str] = (),
    frames: Sequence[str] = (),
    *,
    is_cut: bool = False,
    is_start: bool = False,
) -> Passage | None:
    """Explain a message by its data, by its values where they say more, and by what it gives as the reason.

    `reasons` and `frames` are of the traceback after it, of which the end is missing if it `is_cut`;
    `is_start`: it ended a start. None if its text is, by its values, another message.
    """
    passage = explained(match, writers)
    if passage is None:
        return None
    passage = _in_place(passage, frames, is_start=is_start)
    if passage.kind == "update_failed" and (update := unknown_update(match.text, reasons, frames)):
        return told_of_unknown_update(passage, update)
    if passage.kind == "client_write_failed" and is_of_no_writer(reasons):
        passage = msgspec.structs.replace(passage, words=[REQUEST_FAILED], advice=[])
    if passage.severity != "normal":
        is_start = is_start or passage.kind in _OF_STARTS
        passage = _with_reasons(passage, match, writers, reasons, frames, is_start=is_start)
        if passage.kind in TO_OTHERS:
            passage = with_reason_of_others(passage, match, reasons)
        lacking = next((one for one in reasons if isinstance(one, Match) and one.message.key == LACKS), None)
        if lacking is not None and match.message.logger == SERVED:
            request = failed_request(match) or "requests as this one"
            passage = to_main(passage, request, step=lacking.message.do)
        if passage.kind in RETRIES and match.values:
            passage = msgspec.structs.replace(passage, advice=advice_of(match.values[0], passage.advice))
        if passage.kind in ("push_unreachable", "push_badge"):
            passage = with_push_answer(passage, reasons)
        if not passage.cause:
            passage = with_frames(passage, frames, is_cut=is_cut)
    words = list(passage.words)
    if passage.severity == "normal" and not any("normal" in word for word in words):
        words.append("This is normal.")
    if match.spans and not match.is_cut:
        words.append(f"Logged by {', and '.join(span_text(one.since, one.until) for one in match.spans)}.")
    return msgspec.structs.replace(passage, words=words)


_OF_VALUE: Final = re.compile(r"'(?:NoneType|dict|list|str|int|bool|tuple|coroutine)' object|NoneType")
"""An object that is no part of a program: a value is another than was expected, and no package is."""

_TOLD_WHOLE: Final = ("sequence_table", "sequence_position")
"""Exceptions with a long text, all of which is in what is said of them."""


def _with_reasons(
    passage: Passage,
    match: Match,
    writers: Writers,
    reasons: Sequence[Match | str],
    frames: Sequence[str] = (),
    *,
    is_start: bool = False,
) -> Passage:
    """Add what the exceptions of a message mean, or the last of them as it is."""
    if (
        match.message.logger != REDIS
        and not match.pattern.is_raised
        and (named := find_reason(match.text[len(match.pattern.literals[0]) :]))
    ):
        reasons = [named, *reasons]
    known: dict[str, Passage] = {}
    for one in reasons:
        found = explained(one, writers) if isinstance(one, Match) else None
        if found is not None and found.kind != match.message.key:
            found = of_redis_client(found, match.message.logger)
            found = _in_place(found, frames, match.message.key, is_start=is_start)
            known.setdefault(found.kind, found)
    if not known:
        last = next(
            (
                one if isinstance(one, str) else one.text
                for one in reasons[-1:]
                if isinstance(one, str) or one.message.key in NOT_BY_DATA
            ),
            "",
        )
        if not last:
            return passage
        words, advice = [f"The exception: {excerpt(last)}"], list(passage.advice)
        if (told := told_of_exception(last, frames)) is not None:
            words.append(told.means)
            # The traceback is read, so that the advice to read it goes.
            advice = [step for step in advice if not step.startswith("read the ")]
            advice += [told.do] if told.do else []
        return msgspec.structs.replace(passage, words=[*passage.words, *words], advice=advice)
    # The traceback is read, so that the advice to read it goes.
    advice = [step for step in passage.advice if not step.startswith("read the ")]
    words = list(passage.words)
    for reason in known.values():
        first, *more = reason.words
        # Its values are in the meaning.
        shown = reason.text.partition(": ")[0] if reason.kind in _TOLD_WHOLE else excerpt(reason.text)
        words += [f"{shown}: {first}", *(word for word in more if word not in words)]
        advice += [step for step in reason.advice if step not in advice]
    severity = min((passage.severity, *(each.severity for each in known.values())), key=SEVERITIES.index)
    cause = next(iter(known.values())).words[0]
    return msgspec.structs.replace(passage, words=words, advice=advice, severity=severity, cause=cause)
