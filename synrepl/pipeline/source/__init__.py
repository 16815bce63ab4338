"""Spark data source ``synrepl``: a daemon's changelog as rows, in batch and streaming queries.

The package is pickled by value: its modules import only each other, so that executors and Spark Connect
servers need only pyarrow and pyspark. Only the column `key` needs synrepl there, for the declarations of
streams.
"""
