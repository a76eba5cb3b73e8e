"""A real Chromium without a window, driven over its DevTools protocol through a pair of pipes."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_END = b"\0"


def program() -> str:
    """The browser's path; LookupError says how to get it."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise LookupError(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")


class Tab:
    """One page, with its log and its network requests."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers, self._rest = to, answers, b""
        self._last_id, self._session = 0, ""
        self.logged: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a DevTools method; RuntimeError with its message if it fails."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + _END)
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._keep(answer)

    def resize(self, width: int, *, scheme: str = "light", medium: str = "screen") -> None:
        """The page as on a screen of this width, or on paper."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def open(self, page: Path) -> None:
        """Load a file and wait for it."""
        self.logged.clear()
        self.requested.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def unfold(self) -> None:
        """Open all that is folded."""
        self.value("document.querySelectorAll('details').forEach((each) => { each.open = true })")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, with promises awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise RuntimeError(json.dumps(done["exceptionDetails"])[:2000])
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """One key down and up, such as Tab or Enter."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            fields = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **fields,
            )

    def screenshot(self, place: Path) -> None:
        """The whole page, however long, as PNG."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        place.write_bytes(base64.b64decode(done["data"]))

    def pdf(self, place: Path) -> None:
        """The page as PDF, as it prints."""
        done = self.call("Page.printToPDF", printBackground=True)
        place.write_bytes(base64.b64decode(done["data"]))

    def _next(self) -> dict[str, Any]:
        while _END not in self._rest:
            got = os.read(self._answers, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self._rest += got
        line, _, self._rest = self._rest.partition(_END)
        return dict(json.loads(line))

    def _keep(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.logged.append(f"{params['type']}: {params['args']}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.logged.append(f"exception: {params['exceptionDetails']}")
        elif event.get("method") == "Log.entryAdded":
            self.logged.append(f"{params['entry']['level']}: {params['entry']['text']}")


@contextmanager
def tab() -> Iterator[Tab]:
    """A browser with one page, ended afterwards."""
    # The browser reads calls from descriptor 3 and answers on 4: a shell puts them there.
    calls, to = os.pipe()
    answers, end = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *("bash", "-c", f'exec "$@" 3<&{calls} 4>&{end}', "bash", program()),
            *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
            *("--no-first-run", "--disable-background-networking", "--hide-scrollbars"),
            f"--user-data-dir={profile}",
        ]
        browser = subprocess.Popen(
            command, pass_fds=(calls, end), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(calls)
        os.close(end)
        try:
            yield Tab(to, answers)
        finally:
            os.close(to)
            browser.terminate()
            browser.wait(timeout=30)
            os.close(answers)
