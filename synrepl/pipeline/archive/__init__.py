"""Archive: the log as Parquet files, and the manifests that name these files."""
