"""Addresses that people hid before they pasted a line: ``<my ip>``, ``[redacted]``, ``x.x.x.x``."""

import re
from typing import Final

HOST: Final = "HOST"
"""What stands in an answer for an address that was hidden."""

_PART: Final = rf"(?:\d{{1,3}}|{'|'.join(f'{one}{{1,3}}' for one in 'abcdnxyzABCDNXYZ')}|[*#?]{{1,3}})"
_NUMBERS: Final = r"(?:\d{1,3}\.){3}\d{1,3}(?![\w.*#?])"
_HIDDEN: Final = (
    r"<{1,2}(?!NOSRV|BADREQ)[^<>\n]{1,60}>{1,2}|\[(?!(?:local|[\da-fA-F:.%]{1,45})\])[^\[\]\n]{1,60}\]|\([^()\n]{1,60}\)"
    r"|\{{1,2}[^{}\n]{1,60}\}{1,2}|&lt;[^&\n]{1,60}&gt;"
    rf"|(?!{_NUMBERS})(?:{_PART}\.){{3}}{_PART}(?![\w.])"
    r"|\*{2,40}(?:\.\*{2,40}){0,3}|[xX]{3,40}(?![\w.-])|#{2,40}"
    r"|(?i:redacted|hidden|censored|masked|removed|anonymi[sz]ed|obfuscated|example"
    r"|(?:(?:my|your|the|our|server|host|public|private|internal|container)[-_.]?){0,3}ip(?:[-_.]?addr(?:ess)?)?"
    r"|(?:my|your)[-_.]?(?:server|host(?:name)?|domain|address))(?![\w.-])"
)
_IS_HIDDEN: Final = re.compile(_HIDDEN, re.ASCII)
_IN_PLACE: Final = re.compile(
    r"(?P<before>https?://|dial (?:tcp|udp) |dial tcp: lookup |connect to |for \(|remote server |returned by"
    r" |to backend:? |\S->|[Ss]erver |(?:^|[\s\"'])\w*upstream \"|container \\?\"/?)"
    rf"(?:{_HIDDEN})(?=[:/\s\"')]|\Z)",
    re.ASCII | re.MULTILINE,
)
"""Where an address stands in a line of a proxy."""


def with_placeholders(text: str) -> str:
    """Return a line of a proxy with `HOST` for each address in it that was hidden."""
    return _IN_PLACE.sub(rf"\g<before>{HOST}", text)


def is_hidden(name: str) -> bool:
    """Whether a name, or an address, only stands for one that its author did not want to show."""
    return _IS_HIDDEN.fullmatch(name) is not None


_PLAIN: Final = re.compile(r"[\w.:%/@\[\]-]+")
"""What an address has: with anything else in it, it was hidden in a way that is not known."""

_PORT: Final = re.compile(r"(?::\d{1,5})?\Z", re.ASCII)


def shown_address(address: str) -> str:
    """Return an address as an answer may have it: with `HOST` if it was hidden."""
    if _PLAIN.fullmatch(address) and not is_hidden(address):
        return address
    found = _PORT.search(address)
    return f"{HOST}{found[0] if found else ''}"
