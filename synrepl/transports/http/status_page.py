"""The status page, for people: rendered on the server, complete without the script that refreshes it."""

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from synrepl.html.templates import load_template
from synrepl.replication.status import states
from synrepl.rooms import rooms

KINDS: Final = {word: state.kind for word, state in states().items()}
"""The CSS class of each state, for its color; the word is always shown, too."""

_SECTIONS: Final = {room: section for room in rooms() if (section := room.page_section()) is not None}

TEMPLATE: Final = load_template(
    "synrepl.transports.http",
    "status.html.j2",
    *(type(room).__module__.rpartition(".")[0] for room in _SECTIONS),
    KINDS=KINDS,
    STATES={word: state.means for word, state in states().items()},
    ROOM_TEMPLATES=[section.template for section in _SECTIONS.values()],
    **{name: value for section in _SECTIONS.values() for name, value in section.names.items()},
)


def page(status: Mapping[str, Any], now: float) -> bytes:
    """Render a status from `build_status` at a time in Unix seconds."""
    return TEMPLATE.render(status=status, now=now).lstrip().encode("utf-8", "replace")


def _hash(block: str) -> str:
    text = "".join(TEMPLATE.blocks[block](TEMPLATE.new_context()))
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


POLICY: Final = (
    f"default-src 'none'; style-src {_hash('style')}; script-src {_hash('script')}; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
).encode()
"""The content security policy: only this style, this script, embedded images, and requests to this daemon."""
