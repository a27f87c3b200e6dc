"""A headless Chromium, driven through its DevTools protocol over a pair of pipes.

Messages are JSON, each followed by a zero byte; Chromium reads from descriptor 3 and writes to 4.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. `problems` collects the page's errors, `requests` what it loads."""

    def __init__(self) -> None:
        assert CHROMIUM is not None, "chromium is not installed"
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self.output = high_pipe()
        self.input, theirs_out = high_pipe()

        def hand_over() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *SWITCHES, f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=hand_over,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.count = b"", 0
        self.session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.seen: set[str] = set()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # its own session: only it and its children
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
        self.profile.cleanup()

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> None:
        """Show a page at this width, in a light or dark scheme, with all its charts drawn."""
        self.problems.clear()
        self.requests.clear()
        self.seen.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.emulate(scheme=scheme)
        self.send("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self.seen:
            self.receive()
        self.evaluate("typeof drawn === 'undefined' || drawn")  # a script of the page may draw

    def emulate(self, *, media: str = "", scheme: str = "light") -> None:
        """The screen or paper, light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        """The value of a script in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, full: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self) -> bytes:
        printed = self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(printed["data"])

    # --- the protocol ---------------------------------------------------------------------------

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def receive(self) -> dict[str, Any]:
        """The next message; an event is noted on the way."""
        while b"\0" not in self.buffer:
            chunk = os.read(self.input, 1 << 20)
            if not chunk:
                raise EOFError(f"chromium has ended (exit status {self.process.poll()})")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self.note(message)
        return message

    def note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        self.seen.add(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.problems.append(str(parameters["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.problems.append(f"a dialog: {parameters['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


def high_pipe() -> tuple[int, int]:
    """A pipe whose ends do not collide with the descriptors that Chromium uses."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
