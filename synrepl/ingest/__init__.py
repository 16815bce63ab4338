"""Sources of facts: the Redis of a deployment, servers that are followed over TCP, and tables for catch-up.

All sources write to one log, which stores each fact once. Imported only if a source is configured: an idle
daemon need not load it.
"""

from synrepl.ingest.source_manager import SourceManager

__all__ = ["SourceManager"]
