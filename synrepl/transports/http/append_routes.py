"""Handlers of appends: to one stream, or to several together."""

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET

from synrepl.ports.interfaces import Appended
from synrepl.transports.http.api_error import ApiError
from synrepl.transports.http.append_body import AppendBody, check_append, check_writer, read_facts
from synrepl.transports.http.batch_append import BatchAnswer, BatchBody, append_all
from synrepl.transports.http.call import Call

__all__ = ["append", "append_batch"]

FILES: Final = "files"


async def append(call: Call, body: AppendBody) -> Appended:
    """Append facts of one stream; a replica forwards them to its primary."""
    services, name = call.services, call.path["stream"]
    stream = services.table[name]
    forwarder = services.write_forwarder
    is_forwarded = forwarder is not None and forwarder.is_active
    posted = check_append(body)
    if not is_forwarded and posted.writer is not UNSET:
        check_writer(posted, name, services.log.positions(name), services.settings.instance_name)
    facts = await read_facts(stream, posted, services.clock)
    writer = posted.writer if isinstance(posted.writer, str) else None
    key = posted.idempotency_key if isinstance(posted.idempotency_key, str) else None
    if forwarder is None or not is_forwarded:
        return await services.log.append(name, writer or services.settings.instance_name, facts, key=key)

    from synrepl.replication.write_forwarder import PostedFacts  # only replicas need it in memory

    via: str | None = call.query["via"]
    return await forwarder.forward(
        PostedFacts(
            stream=name,
            facts=[bytes(fact) for fact in posted.facts],
            writer=writer,
            key=key,
            files=_files_of(name, facts) if call.query["files"] else (),
            hops=via.split(",") if via else (),
            query=_passed_on(call.request.uri),
            timeout=call.query["timeout"],
        ),
        services.publisher.waiters,
    )


async def append_batch(call: Call, body: BatchBody) -> BatchAnswer:
    """Append facts of several streams and writers together. A replica refuses."""
    services = call.services
    if services.write_forwarder is not None and services.write_forwarder.is_active:
        if services.roles is not None and (stopped := services.roles.forwarding_refusal("")) is not None:
            raise stopped
        why = "this daemon is a replica: post the batch to the primary, or post each stream by itself"
        raise ApiError("not_primary", why)
    return await append_all(body, services, call.access)


def _passed_on(uri: bytes) -> Sequence[tuple[bytes, bytes]]:
    """Return the parameters that are sent on to the primary, unknown ones included."""
    # Latin-1 maps any bytes to characters and back.
    text = uri.partition(b"?")[2].decode("latin-1")
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in parse_qsl(text, keep_blank_values=True, encoding="latin-1")
        if name not in {"timeout", "via"}
    ]


def _files_of(stream: str, facts: Collection[bytes]) -> frozenset[str]:
    """Return the checksums that rows of ``files`` name, except those that delete."""
    if stream != FILES:
        return frozenset()
    rows = (row for fact in facts for row in msgspec.json.decode(fact))
    return frozenset(row[2] for row in rows if row[0] != "delete" and row[2] is not None)
