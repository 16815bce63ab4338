"""Streams whose facts are the rows of a homeserver's own tables."""

from synrepl.storage.tables.layout import SourceTable, TableStream, table_streams
from synrepl.storage.tables.reading import TableReader
from synrepl.storage.tables.source import TableSource

__all__ = ["SourceTable", "TableReader", "TableSource", "TableStream", "table_streams"]
