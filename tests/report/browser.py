"""Debian's chromium without a screen, driven over the DevTools protocol through a pair of pipes.

`Browser` starts it, `Tab` is one page in it. Messages are JSON objects that end with a zero byte; an answer has the
`id` of its command, everything else is an event and is kept.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
ANSWER_SECONDS = 60
WHY_NOT = "no chromium here: 'apt-get install chromium' to test the page in a browser"


class Browser:
    """A chromium process with a profile of its own."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        commands, self._to_browser = os.pipe()
        self._from_browser, events = os.pipe()
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder}", "--hide-scrollbars", "about:blank"),
        ]
        # The protocol's pipes are the file descriptors 3 and 4; copies above them are in nobody's way.
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (commands, events)]
        null = os.open(os.devnull, os.O_RDWR)
        actions = [
            (os.POSIX_SPAWN_DUP2, fd, number)
            for fd, number in ((null, 1), (null, 2), *zip(copies, (3, 4), strict=True))
        ]
        self._pid = os.posix_spawn(CHROMIUM, [CHROMIUM, *flags], os.environ, file_actions=actions)
        for fd in (*copies, null):
            os.close(fd)
        os.close(commands)
        os.close(events)
        self._buffer = b""
        self._last_id = 0
        self._events: list[dict[str, Any]] = []

    def close(self) -> None:
        os.close(self._to_browser)
        os.close(self._from_browser)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def events(self, session: str) -> list[dict[str, Any]]:
        """What a tab told so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            is_ready, _, _ = select.select([self._from_browser], [], [], ANSWER_SECONDS)
            assert is_ready, f"chromium said nothing for {ANSWER_SECONDS} s"
            chunk = os.read(self._from_browser, 2**16)
            assert chunk, "chromium has gone"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content


class Tab:
    """One page, opened from a file, at a size."""

    def __init__(
        self, browser: Browser, file: Path, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        is_phone = width < 600
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        self.prefer(scheme)
        self._call("Page.navigate", url=file.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def prefer(self, scheme: str) -> None:
        """What the system says of light and dark."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"waited {seconds} s for {condition}"
            time.sleep(0.02)

    def hover(self, selector: str, x_share: float = 0.5, y_share: float = 0.5) -> None:
        """Move the mouse over the element, to these shares of its width and height."""
        self._mouse("mouseMoved", selector, x_share, y_share)

    def click(self, selector: str) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, selector, 0.5, 0.5)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path) -> None:
        """All of the page, also what is below the window's edge."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(answer["data"]))

    def print_pages(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def complaints(self) -> list[str]:
        """Everything that went wrong so far: exceptions, console errors and warnings, the browser's log."""
        found = []
        for event in self._browser.events(self._session):
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(str(params["entry"]))
        return found

    def requests(self) -> list[str]:
        """The addresses that were asked for, data that is in the page itself left out."""
        sent = (e for e in self._browser.events(self._session) if e["method"] == "Network.requestWillBeSent")
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith("data:")]

    def _mouse(self, kind: str, selector: str, x_share: float, y_share: float) -> None:
        find = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y, width, height = self.evaluate(
            f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
        )
        button = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {}
        self._call("Input.dispatchMouseEvent", type=kind, x=x + x_share * width, y=y + y_share * height, **button)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)
