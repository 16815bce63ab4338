"""Storage: the append-only log of facts and the databases that hold it."""

from synrepl.storage.append_errors import FROM_TABLE, GivenElsewhere, KeyReused
from synrepl.storage.databases import engine_for
from synrepl.storage.diverged_facts import DivergedFacts
from synrepl.storage.engine import SQLEngine
from synrepl.storage.ephemeral import EphemeralStream
from synrepl.storage.log import Log
from synrepl.storage.sqlite import SQLiteDatabase
from synrepl.storage.threads import ImmediateThread, ReactorThread

__all__ = [
    "FROM_TABLE",
    "EphemeralStream",
    "ImmediateThread",
    "GivenElsewhere",
    "KeyReused",
    "DivergedFacts",
    "Log",
    "ReactorThread",
    "SQLEngine",
    "SQLiteDatabase",
    "engine_for",
]
