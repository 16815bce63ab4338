"""What an explanation repeats of a pasted text: shortened, in one line, and without secrets."""

import re
from typing import Final

from synrepl.wire.text import printable


def excerpt(text: str) -> str:
    """Return the beginning of an exception's text, for a sentence."""
    text = printable(without_secrets(" ".join(text[:MAX_TEXT].split())))
    if len(text) > MAX_REASON:
        return f"{text[:MAX_REASON]} ..."
    text = text.rstrip(".: ")
    # The text may begin within brackets or quotes, and up to Python 3.6 a repr ends with a comma.
    text = _REPR_END.sub(r"\1", text)
    while text and _is_unpaired(text, text[-1]):
        text = text[:-1].rstrip(".: ")
    return text


_REPR_END: Final = re.compile(r"(?<=['\"]),(\)*)\Z")


def _is_unpaired(text: str, last: str) -> bool:
    if last in "'\"":
        return text.count(last) % 2 == 1
    return text.count(last) > text.count(_OPENED.get(last, last))


_OPENED: Final = {">": "<", "]": "[", ")": "("}

MAX_REASON: Final = 200
"""The most characters that a sentence has of an exception's text."""

_SECRETS: Final = re.compile(
    r"(?P<before>USER_IP \S{1,300} ).*"
    r"|(?P<key>access_token=)[^&\s\"']+"
    r"|(?P<password>password=)[^&\s\"']+"
    r"|(?P<user>://[^/\s:@]{0,100}:)[^/\s@]{1,300}(?=@)"
    r"|\b(?:syt_|MDAx)\w{8,}",
    re.ASCII,
)


def without_secrets(text: str) -> str:
    """Return a text without the access tokens and passwords in it."""
    return _SECRETS.sub(lambda found: f"{found[found.lastgroup] if found.lastgroup else ''}(not shown)", text)


MAX_TEXT: Final = 300
"""The most characters of a message that are looked through for what is repeated of it."""
