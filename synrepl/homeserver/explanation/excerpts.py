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

_MECHANISM: Final = "(?:PLAIN|LOGIN|CRAM-MD5|XOAUTH2)"
"""What stands behind the AUTH of SMTP, before what is secret or in its place."""

_SECRETS: Final = re.compile(
    r"(?P<line>USER_IP \S{1,300} (?=\W)).*"
    # A key that is named as one, with its value: in quotes, as libpq, JSON and Python write it, or up to a
    # space. Quotes that were cut off do not end.
    r"|(?P<key>(?i:password|passwd|passphrase|secret|secret_key|(?:access|refresh|login|as|hs|auth|api|bearer)"
    r"_?(?:token|key)|smtp_pass)(?:\\{0,7}[\"'])?\s{0,3}[=:]\s{0,3}(?!\(not shown\)))"
    # Backslashes stand before the quotes of a document within a text; before a quote in the value are more.
    r"(?:b?(?P<quote>\\{0,7}[\"'])(?:(?!(?P=quote))\\*[^\\])*(?:(?P=quote)|\\*\Z)"
    r"|(?:[^\s&\"]|&(?!\w{1,80}=))*[^\s&\"')\]}>,;])"
    r"|(?P<user>://[^/\s:@]{0,100}:)[^/\s?#]{1,300}(?=@)"
    # "Bearer authentication": a token is longer than words, in quotes, or of more than letters.
    r"|(?P<scheme>(?i:authorization)[\"']?\s{0,3}[=:]\s{0,3}[\"']?(?i:basic) |(?i:\bbearer) )"
    r"(?=[\w.~+/=-]*(?:[\d_=+~]|\.\w|[a-z][A-Z])|[\w.~+/=-]{20}|[\w.~+/=-]+\\?[\"'])[\w.~+/=-]{6,}"
    # Of SMTP it is an extension, with names of mechanisms; "AUTH", and its arguments, may be in quotes.
    r"|(?P<command>(?<!SMTP )\bAUTH(?:\\{0,7}[\"'],?)? (?!user=|[\w<>]{1,20}:"
    rf"|(?:called|command|required|error|failed|or|is)\b|(?:{_MECHANISM}(?: |\Z))+(?![\w+/]))"
    r"(?:b?\\{0,7}[\"'])?"
    rf"|\bAUTH {_MECHANISM} (?!{_MECHANISM}\b)(?=[\w+/]*[A-Z\d=]))"
    r"[^\s\"',]+(?![^\s\"',]*,)"
    r"(?:(?:[\"'],?)? (?:b?\\{0,7}[\"'])?(?!called\b|without\b)[^\s\"',]+)?"
    r"|\b(?:sy[trl]_|MDAx)\w{8,}|\bm(?:at|ar|ct|cr|pt)_[A-Za-z0-9]{8,}_\w{3,}",
    re.ASCII,
)
_BEFORE: Final = ("line", "key", "user", "scheme", "command")


def without_secrets(text: str, *, is_sentence: bool = False) -> str:
    """Return a text without the access tokens and passwords in it, as people paste it into public issues.

    In a sentence of an answer a word after a colon is none: "without a password: anybody".
    """

    def shown(found: re.Match[str]) -> str:
        before = next(filter(None, map(found.group, _BEFORE)), "")
        if is_sentence and before.endswith(": ") and not found["quote"]:
            return found[0]
        return f"{before}(not shown)"

    return _SECRETS.sub(shown, text)


MAX_TEXT: Final = 300
"""The most characters of a message that are looked through for what is repeated of it."""
