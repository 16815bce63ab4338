"""Where a daemon hears of facts: the Redis of its deployment, servers that it follows over TCP, or both.

What is heard goes into one log, each fact once, whoever brings it first. Imported only where there is
something to follow: an idle daemon need not have all of this in memory.
"""

from synrepl.ingest.source_manager import SourceManager

__all__ = ["SourceManager"]
