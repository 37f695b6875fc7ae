"""Processes in which torch sees the pretend GPU, each for one test.

A library is preloaded only when a process starts, and a new interpreter takes seconds to import
torch. So a server starts once with the library, imports torch, and forks a process for each test
before anything has touched CUDA. That process runs pytest on the one test, and its reports become
those of the test session.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from tests.patience import seconds
from tests.pretend_gpu.build import build, environment

ROOT = Path(__file__).parents[2]

IN_CHILD = "PRETEND_GPU_CHILD"
"""Variable that is set in the server and in the processes that it forks."""


class PretendGpu:
    """The libraries of one test session, and the server that runs tests on them.

    Raises:
        Unavailable: the libraries cannot be built here.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pretend_gpu_")
        self._server: subprocess.Popen[str] | None = None
        try:
            build(Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise

    def run(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Run one test in a separate process, and return its reports."""
        with tempfile.TemporaryDirectory(prefix="pretend_gpu_test_") as name:
            folder = Path(name)
            status = self._ask({"test": item.nodeid, "folder": name})
            log = _text(folder / "log.txt")
            if status is None:
                return [_failure(item, f"the test had not ended in time\n{log}")]
            if not (folder / "reports.pickle").exists():
                return [_failure(item, f"the process ended with status {status}\n{log}")]
            reports = pickle.loads((folder / "reports.pickle").read_bytes())
        hook = item.config.hook.pytest_report_from_serializable
        found = [hook(config=item.config, data=report) for report in reports]
        return found or [_failure(item, f"pytest did not run the test\n{log}")]

    def close(self) -> None:
        """End the server, and delete the libraries."""
        if self._server is not None:
            _kill(self._server)
        self._server = None
        self._folder.cleanup()

    def _ask(self, request: dict[str, str]) -> int | None:
        """Return the status with which a test's process ended; None after the time limit."""
        server = self._server = self._server or self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if wait([server.stdout], seconds(20)):
            return int(server.stdout.readline() or -1)
        _kill(server)
        self._server = None
        return None

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pretend_gpu.processes"],
            cwd=ROOT,
            env={**os.environ, **environment(Path(self._folder.name)), IN_CHILD: "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def _kill(server: subprocess.Popen[str]) -> None:
    """Kill a server and the processes that it forked."""
    os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _failure(item: pytest.Item, text: str) -> pytest.TestReport:
    keywords = dict.fromkeys(item.keywords, 1)  # the marks themselves cannot be sent
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call")


class _Recorder:
    """A plugin of pytest that keeps the reports."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook.pytest_report_to_serializable
        self.reports.append(hook(config=self._config, report=report))


def _run_test(test: str, folder: Path) -> None:
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    recorder = _Recorder()
    options = ["-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    # Plugins of pytest in the server are already imported; their assertions need no rewriting.
    warnings = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([test, *options, *warnings], plugins=[recorder])
    (folder / "reports.pickle").write_bytes(pickle.dumps(recorder.reports))


def _serve() -> None:
    import hypothesis  # noqa: F401 - imported once for all tests
    import torchvision  # noqa: F401

    import stateful_gpu_loader.tools.verify  # noqa: F401 - nearly all of the package

    gc.freeze()  # children's collections skip modules imported here
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            try:
                _run_test(request["test"], Path(request["folder"]))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
