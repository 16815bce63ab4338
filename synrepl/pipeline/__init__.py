"""The streams on Spark: archive, compaction, audits, reports and replay."""
