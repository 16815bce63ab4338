"""What Spark's gateway logs while the watch runs: faults, and not the way in which the watch ends a batch."""

import logging
from unittest.mock import MagicMock

import pytest

from synrepl.pipeline.watch import watch as watch_module
from synrepl.pipeline.watch.watch import watch


def test_the_end_of_a_batch_by_the_job_itself_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person would take its traceback for one. Afterwards the logger is as it was."""
    gateway = logging.getLogger("py4j.clientserver")
    kept: list[bool] = []

    def look(_: float) -> bool:
        for error in (watch_module._Stopped(), ValueError("a fault")):
            record = logging.LogRecord("x", logging.ERROR, "x", 1, "x", None, (type(error), error, None))
            kept.append(bool(gateway.filter(record)))
        return True

    monkeypatch.setattr(watch_module, "_options", lambda *given: {})
    spark = MagicMock()
    monkeypatch.setattr(watch_module, "_own", lambda given: spark)
    stream = (
        spark.readStream.format.return_value.options.return_value.load.return_value.mapInArrow.return_value
    )
    started = stream.writeStream.foreachBatch.return_value.trigger.return_value.start.return_value
    started.awaitTermination.side_effect = look

    watch(spark, "http://daemon", write=lambda line: None, stopped=lambda: True)

    assert [False, True] == kept[:2]
    assert [] == gateway.filters
