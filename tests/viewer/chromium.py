"""Drives a headless Chromium through its DevTools pipe, with nothing but the standard library.

CI installs the browser with `apt-get install -y chromium`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
LOADED = "document.documentElement?.dataset.state !== undefined"
PATIENCE_SECONDS = 60

KEYS: dict[str, tuple[int, str | None]] = {
    "Tab": (9, None),
    "Enter": (13, "\r"),
    "Escape": (27, None),
    " ": (32, " "),
    "PageUp": (33, None),
    "PageDown": (34, None),
    "ArrowLeft": (37, None),
    "ArrowUp": (38, None),
    "ArrowRight": (39, None),
    "ArrowDown": (40, None),
}
"""Keys with a meaning of their own: their virtual code and the text they type."""


def find_browser() -> str | None:
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """A running browser with one tab, whose messages and exceptions are in `console`; `requests` has its URLs."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        browser = find_browser()
        if browser is None:
            raise FileNotFoundError("no chromium in PATH; apt-get install -y chromium")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4; the shell puts them there.
        wiring = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", wiring, browser, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session, self._target = b"", 0, "", ""
        self.console: list[str] = []
        self.requests: list[str] = []
        self.tab(width, height, dark)

    def tab(self, width: int = 1280, height: int = 900, dark: bool = False) -> Chromium:
        """Go on in a new tab; returns the browser."""
        self._session = ""
        if self._target:
            self.call("Target.closeTarget", targetId=self._target)
        self.console.clear()
        self.requests.clear()
        self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        return self

    def call(self, method: str, **parameters: Any) -> Any:
        """A DevTools command's result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next_message()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._collect(message)

    def _next_message(self) -> Any:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("chromium ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _collect(self, message: dict[str, Any]) -> None:
        facts = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(str([value.get("value") for value in facts["args"]]))
            case "Runtime.exceptionThrown":
                details = facts["exceptionDetails"]
                self.console.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded":
                self.console.append(facts["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a page from disk and wait until it has decoded its data or said why it cannot."""
        self.call("Page.navigate", url="about:blank")
        # What the page before complained of last may come until now.
        self.console.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        self.wait(LOADED)

    def wait(self, condition: str) -> None:
        """Wait for a JavaScript condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}; console: {self.console}")
            self.frame()

    def frame(self) -> None:
        """Let the page draw."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", str(result)))
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event: mouseMoved, mousePressed, mouseReleased or mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click the left button."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)
        self.frame()

    def drag(self, x: float, y: float, to_x: float, modifiers: int = 0) -> None:
        """Drag sideways with the left button."""
        self.mouse("mousePressed", x, y, button="left", clickCount=1, modifiers=modifiers)
        for part in (0.5, 1):
            self.mouse("mouseMoved", x + (to_x - x) * part, y, button="left", buttons=1, modifiers=modifiers)
        self.mouse("mouseReleased", to_x, y, button="left", clickCount=1, modifiers=modifiers)
        self.frame()

    def texts(self, selector: str) -> list[str]:
        """The text of all elements that a CSS selector finds."""
        found: list[str] = self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.innerText)"
        )
        return found

    def press(self, label: str, within: str = "#inspector") -> None:
        """Press the first button with that text."""
        self.evaluate(
            f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
            f".find((each) => each.innerText === {json.dumps(label)}).click()"
        )
        self.frame()

    def key(self, key: str, text: str | None = None, modifiers: int = 0) -> None:
        """Press a key; those in `KEYS` do what the browser does with them, such as moving the focus."""
        code, typed = KEYS.get(key, (0, text))
        facts: dict[str, Any] = {"key": key, "modifiers": modifiers}
        facts |= {"code": key, "windowsVirtualKeyCode": code} if code else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **({"text": typed} if typed else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)
        self.frame()

    def screenshot(self) -> bytes:
        """Return the tab's picture, as PNG."""
        self.frame()
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._commands)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()


Tab = Callable[..., Chromium]
"""The fixture `tab`: goes on in an empty tab of a given width and height."""
