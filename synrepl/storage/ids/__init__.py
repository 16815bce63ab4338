"""Ids for streams in a database: their reservation, completion and positions."""

from synrepl.storage.id_tables import IdStream, IdTable
from synrepl.storage.ids.generator import (
    AllocatedIds,
    MultiWriterIdGenerator,
    NotAWriter,
    Reservation,
    StreamIdGenerator,
    Unfinished,
)
from synrepl.storage.ids.transactions import ITransaction, Transaction, transact
from synrepl.storage.ids.writer_session import WriterSession

__all__ = [
    "AllocatedIds",
    "ITransaction",
    "IdStream",
    "IdTable",
    "MultiWriterIdGenerator",
    "NotAWriter",
    "Reservation",
    "StreamIdGenerator",
    "Transaction",
    "Unfinished",
    "WriterSession",
    "transact",
]
