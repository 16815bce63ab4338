"""Spark data source ``synrepl``: a daemon's changelog as rows, in batch and streaming queries.

The package is pickled by value, with the few modules that it imports (`pickle_by_value`). So executors and
Spark Connect servers need only pyarrow and pyspark, and synrepl only for the column `key`.
"""
