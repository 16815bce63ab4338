"""The Spark data source ``synrepl``: a daemon's changelog as rows, in batches and as a stream.

Travels by value: its modules import nothing of ours but each other, so that executors, and servers of Spark
Connect, need only pyarrow and pyspark. Only the column `key` needs synrepl there, as it knows the streams.
"""
