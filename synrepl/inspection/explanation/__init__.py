"""The explanation of a homeserver's pasted text: sync tokens, log lines and lines of the protocol.

Pure: nothing here reads a database, a network or a clock, and nothing needs Twisted.
"""

from synrepl.inspection.explanation.explainer import KINDS, MAX_BYTES, MAX_LINES, explain
from synrepl.inspection.explanation.results import Explanation, HomeserverState, Passage

__all__ = ["KINDS", "MAX_BYTES", "MAX_LINES", "Explanation", "HomeserverState", "Passage", "explain"]
