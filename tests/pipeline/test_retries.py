"""Python workers of Spark that start late, as on a busy machine."""

import pytest
from py4j.protocol import Py4JError

from synrepl.pipeline.jobs import ATTEMPTS, explain_failure, retry_late_workers

LATE = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark..."


class Job:
    """Fails so many times, with this."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.runs = 0
        self._failures = failures
        self._error = error

    @retry_late_workers
    def run(self, name: str, *, facts: int) -> str:
        self.runs += 1
        if self.runs <= self._failures:
            raise self._error
        return f"{name} {facts}"


def test_a_worker_that_starts_late_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Spark waits ten seconds, whatever it is told; a user's machine may be busy for longer."""
    job = Job(ATTEMPTS - 1, Py4JError(LATE))

    assert "archive 3" == job.run("archive", facts=3)
    assert ATTEMPTS == job.runs
    assert f"attempt {ATTEMPTS} of {ATTEMPTS}" in caplog.messages[-1]


def test_in_the_end_it_fails_and_says_why() -> None:
    """In one line, with what to do."""
    job = Job(ATTEMPTS, Py4JError(LATE))

    with pytest.raises(Py4JError) as caught:
        job.run("archive", facts=3)

    assert ATTEMPTS == job.runs
    assert "the machine is busy; run the job again" in explain_failure(caught.value)


def test_other_failures_are_not_tried_again() -> None:
    """They would fail again, and may have had effects."""
    job = Job(1, ValueError("no such stream"))

    with pytest.raises(ValueError, match="no such stream"):
        job.run("archive", facts=3)

    assert 1 == job.runs


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (
            "a.b.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9; ",
        ),
        ("ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError: No module named 'x'; "),
        (
            (
                'An error occurred\n: java.io.IOException: Cannot run program "/no": error=2, No such file\n'
                "\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:1)"
            ),
            'Cannot run program "/no": error=2, No such file; ',
        ),
    ],
)
def test_another_python_is_explained_by_its_variable(text: str, start: str) -> None:
    """Spark names the variable on another line, or not at all."""
    explained = explain_failure(Py4JError(text))

    assert explained.startswith(start)
    assert "set PYSPARK_PYTHON to that of the environment in which synrepl[spark] is installed" in explained


def test_another_program_is_not_python() -> None:
    """Hadoop runs some for the rights of files."""
    text = 'java.io.IOException: Cannot run program "chmod": error=2\n\tat org.apache.hadoop.util.Shell'

    assert explain_failure(Py4JError(text)) == 'IOException: Cannot run program "chmod": error=2'
