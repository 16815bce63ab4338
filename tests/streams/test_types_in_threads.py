"""Types that several threads use for the first time at once."""

import subprocess
import sys

PROGRAM = """
import sys, threading
import msgspec

sys.setswitchinterval(1e-6)
for number in range(500):
    inner = msgspec.defstruct("Inner", [(f"i{at}", int | str) for at in range(20)], namespace={})
    inner.__annotations__ = dict.fromkeys(inner.__annotations__, "int | str")
    outer = msgspec.defstruct("Outer", [(f"o{at}", int | None) for at in range(8)] + [("inner", inner)])
    value = {f"o{at}": 1 for at in range(8)} | {"inner": {f"i{at}": 1 for at in range(20)}}
    start = threading.Barrier(4)

    def first():
        start.wait()
        msgspec.convert(value, outer)

    threads = [threading.Thread(target=first) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


def test_a_type_may_be_used_first_by_several_threads() -> None:
    """msgspec up to 0.22 ended the process: a job of the pipeline that read its archive in threads died."""
    assert subprocess.run([sys.executable, "-c", PROGRAM]).returncode == 0
