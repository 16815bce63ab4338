"""The pipeline: what needs no Spark first, the rest with one shared session."""
