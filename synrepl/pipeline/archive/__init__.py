"""An archive: the log as Parquet, and the manifests that say which files are of it."""
