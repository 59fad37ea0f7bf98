"""The exporter: an HTTP server that answers `GET /metrics`."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvtrace.errors import KvtraceError
from kvtrace.live.follow import Follower
from kvtrace.live.openmetrics import OPEN_METRICS, TEXT, render

POLL_S = 1.0
_IDLE_CLIENT_S = 30


class Exporter:
    """Follows a recording and serves its counts.

    Args:
        follower: The recording.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        with_names: Serve the models' names, too.

    Raises:
        KvtraceError: The address cannot be listened on.
    """

    def __init__(self, follower: Follower, host: str, port: int, *, with_names: bool = False) -> None:
        self._follower = follower
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            timeout = _IDLE_CLIENT_S
            server_version = "kvtrace"
            sys_version = ""

            def do_GET(self) -> None:
                if self.path.split("?")[0] != "/metrics":
                    self.send_error(404, "The metrics are at /metrics")
                    return
                open_metrics = "application/openmetrics-text" in self.headers.get("Accept", "")
                with exporter._lock:
                    body = render(follower, open_metrics=open_metrics, with_names=with_names).encode()
                self.send_response(200)
                self.send_header("Content-Type", OPEN_METRICS if open_metrics else TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        exporter = self
        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise KvtraceError(
                f"cannot listen on {host}:{port}: {error}; name another with --host and --port"
            ) from error
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host, port = self._server.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/metrics"

    def run(self) -> None:
        """Follow and serve until interrupted.

        The recording is read once before the first answer: a scrape that comes before is held by the socket.
        """
        self._follower.poll()
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            pause = threading.Event()
            while True:
                pause.wait(POLL_S)
                with self._lock:
                    self._follower.poll()
        finally:
            self._server.shutdown()
            self._server.server_close()
