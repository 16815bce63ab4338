"""Of scripts/lib/beside.sh: commands that run beside others, as `scripts/test` and `.ci/run` start them."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "lib" / "beside.sh"


def _run(lines: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'. "{SCRIPT}"; trap stop_beside EXIT\n{lines}'],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_a_command_printed_and_how_it_ended_is_told_when_it_is_joined() -> None:
    ran = _run(
        "beside good echo fine; beside bad bash -c 'echo oh; exit 3'; joined good; joined bad || echo failed"
    )
    assert ran.stdout.split() == ["fine", "oh", "failed"]
    assert ran.returncode == 0


def test_a_status_that_the_shell_has_forgotten_is_known() -> None:
    """Bash forgets a child that ended when another gets its PID, and after a `wait` as well."""
    ran = _run(
        "beside good true; beside bad false; wait; joined good && echo fine; joined bad || echo failed"
    )
    assert ran.stdout.split() == ["fine", "failed"]


def test_a_command_that_still_runs_is_ended_with_the_script() -> None:
    ran = _run(
        """
        beside long bash -c 'echo $$; exec sleep 600'
        until [ -s "$BESIDE/long.log" ]; do sleep 0.05; done
        cat "$BESIDE/long.log"
        """
    )
    subprocess.run(["tail", f"--pid={int(ran.stdout)}", "-f", "/dev/null"], timeout=60, check=True)
