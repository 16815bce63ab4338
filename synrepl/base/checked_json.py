"""JSON in small files, with a checksum of its own: a flipped bit is found wherever it is.

The last member is ``check``, the SHA-256 of all bytes before it. Files of earlier releases have none, and are
not verified. They have no other members than these releases knew, so that a member that is unknown is not
taken for a checksum that is missing.
"""

import re
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec

_CHECK: Final = re.compile(rb',(\n )?"check":\s?"([0-9a-f]{64})"\n?\}\n\Z')

T = TypeVar("T")


def encode(value: Any, *, indent: int = 0) -> bytes:
    """Encode a struct or a dict with members. With an `indent` of 1 there is a member in each line."""
    data = msgspec.json.encode(value)
    if indent:
        data = msgspec.json.format(data, indent=indent)
    before = data[:-1].rstrip()
    check = sha256(before).hexdigest().encode()
    start, end = (b',\n "check": "', b'"\n}\n') if indent else (b',"check":"', b'"}\n')
    return before + start + check + end


def decode(data: bytes, type: type[T], *, later: frozenset[str] = frozenset()) -> T:
    """Decode a struct. Raises ValueError if it is damaged, or is none.

    `later` are the members that no file without a checksum has.
    """
    if (found := _CHECK.search(data)) is not None:
        data = data[: found.start()]
        if sha256(data).hexdigest() != found[2].decode():
            raise ValueError("its checksum does not match")
        return msgspec.json.decode(data + b"}", type=type)
    members = msgspec.json.decode(data, type=dict[str, Any])
    known = {one.encode_name for one in msgspec.structs.fields(type)} - later  # type: ignore[arg-type]
    if unknown := sorted(members.keys() - known):
        raise ValueError(f"it has no checksum, and the unknown member {unknown[0][:40]!r}")
    return msgspec.json.decode(data, type=type)
