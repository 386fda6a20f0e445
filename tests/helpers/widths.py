"""Widths of the pages of a site in Chromium; in tests/: `python -m helpers.widths SITE [WIDTH ...]`.

A page of this program opens those of the site in a frame of each width, from a server of this machine, and reports to it.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from .launch import patient

PROGRAM = Path(__file__).with_suffix(".html")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",  # otherwise it ends as soon as the page is loaded
)
WIDTHS = (1300, 400)


class Page(NamedTuple):
    """What the browser finds of a page."""

    page: str
    width: int
    window: int  # width in pixels without a vertical scroll bar
    content: int
    cut: list[str]  # elements whose ends a reader cannot reach
    scrolling: list[dict]  # boxes with a scroll bar of their own

    def faults(self) -> list[str]:
        """Return what is too wide: elements that are cut, or else the page."""
        where = f"{self.page} at {self.width} px"
        said = [f"{where}: beyond the edge: {element}" for element in self.cut]
        if self.content > self.window and not said:
            said = [f"{where}: scrolls, {self.content} px in a window of {self.window} px"]
        return said

    def boxes(self, *kinds: str) -> list[str]:
        """Return the boxes of these kinds of elements that scroll."""
        return [
            f"{self.page} at {self.width} px: {one['content']} px in {one['box']} px: {one['what']}"
            for one in self.scrolling
            if one["what"].startswith(kinds)
        ]


def browser() -> str | None:
    """Return the path of Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Handler(SimpleHTTPRequestHandler):
    """Serves the site and the page that measures, and takes what it finds."""

    asked: dict[str, list]
    found: Queue[Page | None]

    def do_GET(self) -> None:
        served = {
            "/measure": ("text/html", PROGRAM.read_bytes()),
            "/asked": ("application/json", json.dumps(self.asked).encode()),
        }
        if self.path not in served:
            super().do_GET()
            return
        kind, body = served[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.found.put(Page(**json.loads(body)) if self.path == "/found" else None)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def measured(
    site: Path, chromium: str, widths: tuple[int, ...] = WIDTHS, patience: float = 60
) -> Iterator[Page]:
    """Yield what the browser finds of each page at each width; each may take `patience` seconds."""
    pages = sorted(
        f"/{path.relative_to(site).as_posix()}"
        for path in site.rglob("*.html")
        if not path.relative_to(site).parts[0].startswith("_")
    )
    found: Queue[Page | None] = Queue()
    kind = type("Site", (Handler,), {"asked": {"pages": pages, "widths": widths}, "found": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        address = f"http://127.0.0.1:{server.server_port}/measure"
        command = [chromium, *FLAGS, f"--window-size={max(widths)},1000"]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while (one := found.get(timeout=patience)) is not None:
                yield one
        finally:
            process.terminate()
            process.wait(patient(30))
            server.shutdown()
            server.server_close()


if __name__ == "__main__":
    chromium = browser()
    if chromium is None:
        raise SystemExit(f"no Chromium on PATH: looked for {', '.join(NAMES)}")
    for one in measured(Path(sys.argv[1]), chromium, tuple(map(int, sys.argv[2:])) or WIDTHS):
        for line in one.faults() + [f"  scrolls: {box}" for box in one.boxes("")]:
            print(line)
