"""The explanation of a homeserver's pasted text: sync tokens, lines of its log, lines of the protocol.

Pure: nothing here reads a database, a network or a clock, and nothing needs Twisted.
"""

from synrepl.homeserver.explanation.explainer import KINDS, explain, explain_lines
from synrepl.homeserver.explanation.results import Explanation, HomeserverState, Passage

__all__ = ["KINDS", "Explanation", "HomeserverState", "Passage", "explain", "explain_lines"]
