"""A headless Chromium, driven over its debugging pipe: no driver program and no package is needed.

    with Browser(path) as browser:
        page = browser.open("http://127.0.0.1:9080/")
        page.value("document.title")

`chromium()` finds the program; a test that needs one is skipped where there is none.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Final, Self

from tests.support.conditions import WAIT_S

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: The browser has no address but those of this machine.
OFFLINE: Final = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


def chromium() -> str | None:
    """Return the path of a Chromium; None if this machine has none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser process with a profile of its own, which is removed in the end."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="rocketq-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def give_pipes() -> None:
            # Chromium reads commands from 3 and writes to 4; the ends may have these numbers themselves.
            reading, writing = os.dup(to_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage",
                "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={self._profile}",
                f"--host-resolver-rules={OFFLINE}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=give_pipes,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = 0
        self._answers: dict[int, Queue[dict[str, Any]]] = {}
        self.events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> Page:
        """Open a page and wait until it is loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", size)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", {"features": scheme})
        page.go(url)
        return page

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, session: str = ""
    ) -> dict[str, Any]:
        """Send one command of the DevTools protocol and return its result."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
            answer = self._answers[number] = Queue()
            command = {"id": number, "method": method, "params": parameters or {}}
            if session:
                command["sessionId"] = session
            os.write(self._out, json.dumps(command).encode() + b"\0")
        try:
            told = answer.get(timeout=WAIT_S)
        except Empty:
            raise AssertionError(f"the browser did not answer {method} in {WAIT_S} s") from None
        assert "error" not in told, f"{method}: {told['error']}"
        result: dict[str, Any] = told["result"]
        return result

    def _listen(self) -> None:
        with os.fdopen(self._in, "rb", buffering=0) as pipe:
            rest = b""
            while piece := pipe.read(1 << 20):
                *messages, rest = (rest + piece).split(b"\0")
                for each in messages:
                    told = json.loads(each)
                    if "id" in told:
                        self._answers.pop(told["id"]).put(told)
                    else:
                        self.events.append(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._browser.call(method, parameters, self._session)

    def go(self, url: str) -> None:
        """Load another page."""
        failed = self.call("Page.navigate", {"url": url}).get("errorText")
        assert not failed, f"{url}: {failed}"
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; it is evaluated from outside, whatever the policy."""
        told = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in told, told.get("exceptionDetails")
        return told["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true; while a page is loaded it may be an error."""
        deadline = time.monotonic() + WAIT_S
        pause = threading.Event()
        tried = f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        while not self.value(tried):
            assert time.monotonic() < deadline, f"it did not come about in {WAIT_S} s: {expression}"
            pause.wait(0.02)

    def press(self, text: str) -> None:
        """Type characters, one key after the other."""
        for key in text:
            for kind in ("keyDown", "keyUp"):
                down = {"text": key} if kind == "keyDown" else {}
                self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, **down})

    def events(self, method: str) -> list[dict[str, Any]]:
        """Return the events of a kind that this tab has told."""
        return [
            each["params"]
            for each in list(self._browser.events)
            if each.get("sessionId") == self._session and each["method"] == method
        ]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        told = self.call(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole, **self._clip(whole)}
        )
        path.write_bytes(base64.b64decode(told["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
