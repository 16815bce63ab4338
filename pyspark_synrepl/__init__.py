"""Makes ``format("synrepl")`` known to every Spark session, without a call or a setting.

When a session first looks for a data source of Python, PySpark imports every package named ``pyspark_*`` and
takes the `DefaultSource` of each. An exception here would break the data sources of other packages as well.
"""

import warnings

try:
    from synrepl.pipeline.source.data_source import SynreplSource as DefaultSource
    from synrepl.pipeline.source.data_source import pickle_by_value
except ImportError as error:
    warnings.warn(
        f"the Spark data source synrepl cannot be used: {error}."
        " Install synrepl[spark] for the Python of Spark, or set PYSPARK_PYTHON to one that has it.",
        stacklevel=1,
    )
else:
    __all__ = ["DefaultSource"]
    pickle_by_value()
