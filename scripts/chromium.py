"""A headless Chromium, driven over a pipe: pages are opened, asked and photographed."""

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

# The pipe is at 3 and 4, wherever its ends are here.
START: Final = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]);"
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str | None:
    """The program: `SYNREPL_CHROMIUM`, or one on the path, or one that playwright brought."""
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
    """One browser process, from `with` to its end."""

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
            # It ends by itself when nobody is at the other end of the pipe, with all its children.
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._profile.cleanup()

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer; events that come meanwhile are kept."""
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
        """The next event of this name that nobody was given yet."""
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
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser has gone")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def tab(self, width: int, height: int, *, is_dark: bool = False, has_script: bool = True) -> "Tab":
        """A new page of this size; a narrow one is a phone's."""
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
        """One command, to this page."""
        return self._browser.ask(method, self._session, **params)

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self.ask("Page.navigate", url=url)
        self._browser.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What this is in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Until this is true in the page."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.value(expression):
            if time.monotonic() >= until:
                raise TimeoutError(f"never so: {expression}")
            self.value("new Promise(done => setTimeout(done, 50))")

    def complaints(self) -> list[str]:
        """What the console says that is wrong: faults, and what the policy does not allow."""
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
        """The page as a PNG, as long as it is, but for what is beyond so many pixels."""
        length = int(self.value("Math.ceil(document.documentElement.scrollHeight)"))
        clip = {"x": 0, "y": 0, "width": self._width, "height": min(length, at_most), "scale": 1}
        told = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """Be done with it."""
        self._browser.ask("Target.closeTarget", targetId=self._target)
