"""A small client of Chromium's DevTools protocol: enough to open a page, run JavaScript in it, and wait.

Debian's chromium needs nothing else: no driver, no download.  The protocol is JSON over a WebSocket (websocket-client).
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import websocket

from wts_lab.report import BROWSER_FLAGS

FLAGS = (
    *BROWSER_FLAGS,
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
    "--window-size=1500,1100",
)


class Browser:
    """One headless browser with one page.  Use as a context manager; the profile goes with it."""

    def __init__(self, executable: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wts-browser-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._ids = itertools.count(1)
        port = self._port()
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self._socket = websocket.create_connection(address, timeout=60)
        self.call("Page.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._folder.cleanup()

    def _port(self, timeout_s: float = 30.0) -> int:
        """The port that the browser chose, which it writes into its profile."""
        note = Path(self._folder.name) / "DevToolsActivePort"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if note.is_file() and note.read_text().strip():
                return int(note.read_text().splitlines()[0])
            time.sleep(0.1)
        raise TimeoutError(f"the browser has not opened its debugging port after {timeout_s} s")

    def call(self, method: str, **parameters: object) -> dict:
        """Send one command and return its result; events in between are dropped."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, address: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> object:
        """The value of a JavaScript expression, promises awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script[:120]}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def wait_for(self, script: str, what: str, timeout_s: float = 60.0) -> object:
        """Run an expression until its value is true, and return that."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.25)
        raise AssertionError(f"{what} did not happen within {timeout_s} s")

    def click(self, script: str) -> None:
        """Click with the mouse in the middle of the element that the expression names."""
        spot = self.run(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, which goes to whatever has the focus; `text` is what it types."""
        for kind, typed in (("keyDown", {"text": text} if text else {}), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def type(self, text: str) -> None:
        """Type a text, a new line as Enter, into whatever has the focus."""
        for line in text.splitlines(keepends=True):
            self.call("Input.insertText", text=line.rstrip("\n"))
            if line.endswith("\n"):
                self.press("Enter", 13, "\r")

    def download_into(self, folder: Path) -> None:
        """Keep what the page offers for download in a folder, without asking."""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """What the page looks like, or a part of it (x, y, width, height in pixels, scale), as a PNG file."""
        more = {} if clip is None else {"clip": clip}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"]))
