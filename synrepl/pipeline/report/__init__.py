"""What an archive tells an operator: one page, with its pictures and tables beside it."""

from synrepl.pipeline.report.report import ReportResult, report

__all__ = ["ReportResult", "report"]
