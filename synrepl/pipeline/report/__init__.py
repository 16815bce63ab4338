"""What an archive tells an operator: one page, with its pictures and tables beside it."""

from synrepl.pipeline.report.report import Reported, report

__all__ = ["Reported", "report"]
