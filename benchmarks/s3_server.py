"""A local S3 server that delays every answer: ``python -m benchmarks.s3_server FOLDER``.

moto keeps a bucket in memory. Each request waits in its own thread before it is answered, like
requests to object storage, however many are in progress. Ranges of objects are answered here,
because moto copies the whole object for each range.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BUCKET = "benchmark"
_READY = "listening on port"


class Late:
    """A WSGI application that delays and counts requests, then answers or forwards them.

    Args:
        application: moto's application.
        contents: contents of the objects in the bucket.
    """

    def __init__(self, application: Any, contents: dict[str, bytes]) -> None:
        self._application = application
        self._contents = contents
        self._lock = threading.Lock()
        self.seconds = 0.0
        self.num_requests = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/_latency/"):
            counted, self.num_requests = self.num_requests, 0
            self.seconds = float(path.rpartition("/")[2]) / 1e3
            text = str(counted).encode()
            start_response("200 OK", [("Content-Length", str(len(text)))])
            return [text]
        with self._lock:
            self.num_requests += 1
        time.sleep(self.seconds)
        content = self._contents.get(path.removeprefix(f"/{BUCKET}/"))
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", environ.get("HTTP_RANGE", ""))
        if content is not None and span is not None and int(span[1]) < len(content):
            part = content[int(span[1]) : int(span[2]) + 1]
            end = int(span[1]) + len(part) - 1
            headers = [
                ("Content-Length", str(len(part))),
                ("Content-Range", f"bytes {span[1]}-{end}/{len(content)}"),
                ("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT"),
            ]
            start_response("206 Partial Content", headers)
            return [part]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer


def main() -> None:
    """Serve the files of a folder until the standard input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    folder = Path(sys.argv[1])
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    application = Late(DomainDispatcherApplication(create_backend_app), contents)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = _client(server.port)
    client.create_bucket(Bucket=BUCKET)
    for name, content in contents.items():
        client.put_object(Bucket=BUCKET, Key=name, Body=content)
    print(f"{_READY} {server.port}", flush=True)
    sys.stdin.read()


def _client(port: int) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="none",
        aws_secret_access_key="none",
    )


@contextlib.contextmanager
def serving(folder: Path, core: int | None) -> Iterator[int]:
    """Serve a folder's files from another process, on one core; yield the port."""
    command = [sys.executable, "-m", "benchmarks.s3_server", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        if core is not None:
            os.sched_setaffinity(server.pid, {core})
        assert server.stdout is not None
        line = server.stdout.readline()
        if _READY not in line:
            raise RuntimeError("the S3 server did not start. Remedy: pip install 'moto[server]'")
        try:
            yield int(line.rpartition(" ")[2])
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait()


def set_latency(port: int, milliseconds: float) -> int:
    """Set the delay of each request; return the number of requests since the last call."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"GET /_latency/{milliseconds} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return int(answer.rpartition(b"\r\n\r\n")[2])


if __name__ == "__main__":
    main()
