"""Decoding of JSON bodies, with errors that name what is wrong."""

import re
import typing
from typing import Any, Final, TypeVar

import msgspec

from synrepl.errors import suggest
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.large_body import LARGE_BYTES, split_facts
from synrepl.wire import jsontext

T = TypeVar("T")

_unknown_field: Final = re.compile(r"unknown field `(.*?)`(?: - at |\Z)", re.DOTALL)

FACTS_FIELDS: Final = frozenset({"facts", "appends"})
"""The fields of bodies that may have many facts."""


def decode_body(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a JSON body. Raises `ApiError`, which names a known field that is near to an unknown one."""
    facts: list[list[msgspec.Raw]] = []
    if len(body) > LARGE_BYTES and _may_have_facts(decoder.type):
        body, facts = split_facts(body)
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        unknown = _unknown_field.search(str(error))
        near = suggest(unknown[1], sorted(_field_names(decoder.type))) if unknown else ""
        raise ApiError("bad_request", f"{error}{near}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError("bad_json", f"the body is not JSON: {jsontext.why_refused(body, error)}") from error
    except RecursionError:
        raise ApiError("bad_json", "the JSON body is nested too deeply") from None
    if facts:
        _restore_facts(decoded, facts)
    return decoded


def _may_have_facts(kind: Any) -> bool:
    return not FACTS_FIELDS.isdisjoint(field.name for field in msgspec.structs.fields(kind))


def _restore_facts(decoded: Any, facts: list[list[msgspec.Raw]]) -> None:
    """Give the facts that were cut out of a body back to its appends."""
    appends = [decoded] if hasattr(decoded, "facts") else getattr(decoded, "appends", [])
    if len(appends) != len(facts):
        raise ApiError("bad_json", "the body has facts in an unexpected place, or twice")
    for append, own in zip(appends, facts, strict=True):
        append.facts = own


def _field_names(kind: Any) -> set[str]:
    """The names of the fields of a struct, and of the structs in them."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return set().union(*map(_field_names, typing.get_args(kind)))
    names: set[str] = set()
    for field in msgspec.structs.fields(kind):
        names |= {field.encode_name} | _field_names(field.type)
    return names
