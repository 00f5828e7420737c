"""A headless Chromium, driven over its DevTools protocol through a pipe; nothing listens."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
KEY_CODES = {"Tab": 9, "Enter": 13}
# How long an answer or a state may take; the machine may be busy.
PATIENCE_S = 120
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1200,900",
    "--remote-debugging-pipe",
]


class Browser:
    """One page; what it complains about is kept in `complaints`, and in `requests` the address
    of everything that it asks for."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise AssertionError(
                f"no browser: one of {', '.join(NAMES)} is needed (scripts/install-deps)")
        self.profile = tempfile.mkdtemp(prefix="bft-browser-")
        # Chromium reads commands from descriptor 3 and answers on 4.
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()

        def place_descriptors():
            # The originals are above 4, or these would close each other.
            os.dup2(read_commands, 3)
            os.dup2(write_answers, 4)

        read_commands, write_answers = (_above_4(fd) for fd in (read_commands, write_answers))
        self.errors = open(pathlib.Path(self.profile) / "stderr", "w+b")
        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=place_descriptors, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=self.errors, stderr=self.errors, start_new_session=True,
        )
        os.close(read_commands)
        os.close(write_answers)
        self.buffer = b""
        self.number = 0
        self.session = None
        self.events = []
        self.complaints = []
        self.requests = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.commands)
            os.close(self.answers)
            self.errors.close()
            shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        """Sends a command; returns its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def open(self, place):
        """Loads a file, or what is at an address, and waits until it is there."""
        self.events.clear()
        is_address = str(place).startswith("http")
        url = place if is_address else pathlib.Path(place).resolve().as_uri()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE_S
        while "Page.loadEventFired" not in self.events:
            self._note(self._read(deadline))

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key, text=None):
        """A key by its DOM name, down and up; `text` is what it writes."""
        told = {"key": key, "code": key, "windowsVirtualKeyCode": KEY_CODES.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def resize(self, width, height=900):
        """The size of the window, pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def mouse(self, kind, x, y, clicks=1):
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button,
                  buttons=0 if kind == "mouseReleased" else 1, clickCount=clicks)

    def drag(self, x, y, to_x, to_y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseMoved", (x + to_x) / 2, to_y)
        self.mouse("mouseMoved", to_x, to_y)
        self.mouse("mouseReleased", to_x, to_y)

    def double_click(self, x, y):
        for clicks in (1, 2):
            self.mouse("mousePressed", x, y, clicks)
            self.mouse("mouseReleased", x, y, clicks)

    def emulate(self, media="", scheme="light"):
        """The media type and the colour scheme that the page sees."""
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self):
        """The whole page as PNG."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self):
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.answers], [], [], max(left_s, 0))
            chunk = os.read(self.answers, 1 << 20) if ready else b""
            if not chunk:
                self.errors.seek(0)
                raise AssertionError(f"no answer from the browser: {self.errors.read()[-2000:]}")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        method, parameters = event.get("method"), event.get("params", {})
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(parameters["args"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"])


def _above_4(descriptor):
    """The same pipe end, inheritable, under a number that nothing else is put on."""
    import fcntl
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return copy
