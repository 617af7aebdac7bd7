"""A real browser over a pipe: enough of the DevTools protocol to open a page, look at it and press a button."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PATH = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if p), None)


class Browser:
    """Headless Chromium with one page; collects console messages, exceptions and network requests."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()
        # The browser speaks on descriptors 3 and 4; a few lines put our two pipes there and become the browser.
        options = (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe",
            "about:blank",
        )  # fmt: skip
        become = (
            "import os, sys; from fcntl import F_DUPFD, fcntl; pipes = [fcntl(int(x), F_DUPFD, 10) for x in sys.argv[1:3]]; "
            "[os.dup2(pipe, place) for place, pipe in enumerate(pipes, 3)]; os.execv(sys.argv[3], sys.argv[3:])"
        )
        command = [sys.executable, "-I", "-S", "-c", become, str(to_read), str(to_write), PATH, *options]
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(to_read, to_write), **quiet)
        os.close(to_read)
        os.close(to_write)
        self.buffer, self.count, self.events = b"", 0, []
        target = self.ask("Target.createTarget", url="about:blank", session=None)["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, session="own", **params):
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session == "own":
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._read(120)).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self, seconds):
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            if not select.select([self.into], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium did not answer")
            data = os.read(self.into, 1 << 20)
            if not data:
                raise RuntimeError("Chromium ended")
            self.buffer += data
        first, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(first)

    def screen(self, width, height=900, dark=False, mobile=False):
        """Set the size of the screen and the colour scheme."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)

    def open(self, path):
        """Open a file and wait until its script has run; give the seconds that took."""
        begin = time.monotonic()
        self.events.clear()
        self.ask("Page.navigate", url=f"file://{path}")
        while not self.run("document.readyState === 'complete' && document.documentElement.dataset.ready === '1'"):
            if time.monotonic() - begin > 120:
                raise TimeoutError("the page did not get ready")
            time.sleep(0.02)
        return time.monotonic() - begin

    def run(self, code):
        """Evaluate JavaScript and give its value."""
        answer = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def complaints(self):
        """Console errors and warnings, uncaught exceptions, and log entries."""
        bad = []
        for event in self.events:
            name, what = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown" or (
                name == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning")
            ):
                bad.append(what)
            if name == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                bad.append(what)
        return bad

    def requests(self):
        """Addresses asked for, besides the page itself and what is inlined in it."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [u for u in urls if not u.startswith(("data:", "file:"))] + [u for u in urls if u.startswith("file:")][1:]

    def screenshot(self, path, whole=True):
        """Save a picture of the page."""
        picture = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def close(self):
        """End the browser."""
        with contextlib.suppress(RuntimeError, OSError, TimeoutError):
            self.ask("Browser.close", session=None)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for end in (self.out, self.into):
            os.close(end)
        self.profile.cleanup()
