"""Headless Chromium, controlled over a pipe: opens pages, evaluates scripts in them, takes screenshots."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["Chromium", "Tab", "find_chromium"]

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_SECONDS: Final = 60.0

# Chromium reads commands at descriptor 3, and writes answers to 4: move the ends of the pipes there.
START: Final = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]);"
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """Return the path of Chromium: `SYNREPL_CHROMIUM`, one on the PATH, or one of playwright; else None."""
    named = os.environ.get("SYNREPL_CHROMIUM")
    if named:
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    brought = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache/ms-playwright"))
    for pattern in ("chromium-*/chrome-linux*/chrome", "chromium_headless_shell-*/*/headless_shell"):
        for path in sorted(brought.glob(pattern)):
            return str(path)
    return None


class Chromium:
    """A browser process, which runs for the length of a `with` block."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._numbers = itertools.count(1)
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="synrepl-chromium-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run"
            " --disable-extensions --disable-background-networking --disable-component-update"
            f" --remote-debugging-pipe --user-data-dir={self._profile.name} about:blank"
        ).split()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), self._program, *arguments],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._out)
        try:
            # Chromium and its children end when the other end of the pipe is closed.
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result; `events` keeps events before it.

        Raises `RuntimeError` if the command fails.
        """
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._read(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> dict[str, Any]:
        """Remove the first event of this name from `events`, and return it; wait for one if there is none."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            for event in self.events:
                if event.get("method") == method:
                    self.events.remove(event)
                    return event
            self.events.append(self._read(until))

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer within {PATIENCE_SECONDS:g} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has ended: it closed its pipe")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def tab(self, width: int, height: int, *, is_dark: bool = False, has_script: bool = True) -> "Tab":
        """Open an empty page of this size in pixels; below 600 pixels of width it is a phone's."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session, width, height)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        tab.ask("Emulation.setEmulatedMedia", features=[scheme])
        if not has_script:
            tab.ask("Emulation.setScriptExecutionDisabled", value=True)
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Chromium, target: str, session: str, width: int, height: int) -> None:
        self._browser = browser
        self._target = target
        self._session = session
        self._width = width
        self._height = height

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this page, and return its result."""
        return self._browser.ask(method, self._session, **params)

    def open(self, url: str) -> None:
        """Load a URL, and wait until the page is loaded."""
        self.ask("Page.navigate", url=url)
        self._browser.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page. Raises `RuntimeError` if it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page. Raises `TimeoutError`."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.value(expression):
            if time.monotonic() >= until:
                raise TimeoutError(f"not true within {PATIENCE_SECONDS:g} s: {expression}")
            self.value("new Promise(done => setTimeout(done, 50))")

    def complaints(self) -> list[str]:
        """Return the warnings, errors and output of the page's console, violations of its policy included."""
        self.value("1")
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            match event:
                case {"method": "Log.entryAdded", "params": {"entry": entry}}:
                    if entry["level"] in ("error", "warning"):
                        found.append(entry["text"])
                case {"method": "Runtime.exceptionThrown", "params": params}:
                    found.append(str(params["exceptionDetails"]))
                case {"method": "Runtime.consoleAPICalled", "params": params}:
                    found.append(str(params["args"]))
        return found

    def photograph(self, path: Path, *, at_most: int) -> None:
        """Write the whole page as a PNG, cut off after `at_most` pixels of height."""
        length = int(self.value("Math.ceil(document.documentElement.scrollHeight)"))
        clip = {"x": 0, "y": 0, "width": self._width, "height": min(length, at_most), "scale": 1}
        told = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """Close the page."""
        self._browser.ask("Target.closeTarget", targetId=self._target)
