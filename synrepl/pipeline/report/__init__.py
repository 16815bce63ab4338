"""Report on an archive: one HTML page, with plots and tables as files."""

from synrepl.pipeline.report.report import ReportResult, report

__all__ = ["ReportResult", "report"]
