"""Signal handlers that run at any line or bytecode of the package, and raise or return.

A signal handler runs between two bytecodes of the main thread. A test chooses the bytecode::

    for place, number in places_of(lambda: next(iter(make()))).items():
        batches = iter(make())
        with interrupt_at(number) as interrupt, suppress(KeyboardInterrupt):
            next(batches)
        assert interrupt.reached, place
"""

from __future__ import annotations

import dis
import functools
import gc
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import stateful_gpu_loader

_PACKAGE = str(Path(stateful_gpu_loader.__file__).parent) + "/"
_HOOKS_OF_FORKS = frozenset({"before_fork", "after_fork", "after_fork_in_child"})
"""Functions in which the interpreter discards exceptions of a handler."""
_TOOL = 4
"""Number that no debugger, profiler or coverage tool uses in ``sys.monitoring``."""


@dataclass(frozen=True)
class Place:
    """Place in the package before which an interrupt is raised."""

    file: str
    """Path within the package."""
    function: str
    line: int
    opcode: str
    """Name of the first bytecode that does not run."""
    callers: tuple[str, ...]
    """Names of the package's functions that called this function, innermost first."""

    @property
    def is_of_finalizer(self) -> bool:
        """Whether ``__del__`` runs: there the interpreter discards exceptions of a handler."""
        return "__del__" in (self.function, *self.callers)

    @property
    def source(self) -> str:
        return linecache.getline(_PACKAGE + self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}, {self.opcode}: {self.source}"


class Interrupt:
    """Counts the places of the package that one thread runs, and calls a handler at one of them."""

    def __init__(
        self,
        at: int | None,
        by: Literal["line", "opcode"],
        handler: Callable[[Place], object] = repr,
    ) -> None:
        self.count = 0
        """Number of places run so far."""
        self.where: Place | None = None
        """Place where the handler was called, or None if it was not reached."""
        self.met: dict[Place, int] = {}
        """Number of each place when it first ran, if no handler is called."""
        self._at = at
        self._handler = handler
        self._by = by
        self._pid = os.getpid()
        """This process. Its forked children continue tracing."""

    @property
    def reached(self) -> bool:
        return self.where is not None

    @contextmanager
    def watching(self) -> Iterator[Interrupt]:
        watch = self._monitored if sys.version_info >= (3, 12) else self._traced
        collects = gc.isenabled()
        # A collection would run finalizers of other tests' objects, and count their places.
        gc.disable()
        try:
            with watch():
                yield self
        finally:
            if collects:
                gc.enable()

    @contextmanager
    def _traced(self) -> Iterator[None]:
        def trace(frame: FrameType, event: str, argument: object) -> Any:
            if not _is_of_package(frame.f_code):
                return None
            if event == "call":
                frame.f_trace_opcodes = self._by == "opcode"
            elif event == self._by:
                self._meet(frame)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        # Since Python 3.12, a trace function that asks for bytecodes misses the first bytecodes of
        # a frame.
        tool, thread = sys.monitoring, threading.get_ident()
        event = tool.events.LINE if self._by == "line" else tool.events.INSTRUCTION

        def met(code: CodeType, line_or_offset: int) -> Any:
            if not _is_of_package(code):
                return tool.DISABLE
            if threading.get_ident() == thread:
                self._meet(sys._getframe(1))
            return None

        tool.use_tool_id(_TOOL, "tests.interrupts")
        tool.register_callback(_TOOL, event, met)
        tool.set_events(_TOOL, event)
        try:
            yield
        finally:
            tool.set_events(_TOOL, 0)
            tool.register_callback(_TOOL, event, None)
            tool.free_tool_id(_TOOL)

    def _meet(self, frame: FrameType) -> None:
        # Bytecodes without a line are the compiler's, at the end of an except block.
        if self.reached or frame.f_lineno is None or _is_of_with(frame.f_code, frame.f_lineno):
            return
        if _opcode(frame) == "NOP" or os.getpid() != self._pid:
            return
        if frame.f_code.co_name in _HOOKS_OF_FORKS:
            return
        self.count += 1
        if self._at is None:
            place = _place(frame)
            if not place.is_of_finalizer:
                self.met.setdefault(place, self.count)
        elif self.count == self._at:
            place = _place(frame)
            if place.is_of_finalizer:
                self._at += 1
                return
            self.where = place
            self._handler(place)


@contextmanager
def handle_at(
    n: int, handler: Callable[[Place], object], *, by: Literal["line", "opcode"] = "opcode"
) -> Iterator[Interrupt]:
    """Call ``handler`` in this thread before the n-th place of the package that the block runs.

    Args:
        n: number of the place, counted from 1. Nothing is called if fewer places run.
        by: "opcode" or "line".
    """
    with Interrupt(n, by, handler).watching() as interrupt:
        yield interrupt


@contextmanager
def interrupt_at(
    n: int,
    error: type[BaseException] = KeyboardInterrupt,
    *,
    by: Literal["line", "opcode"] = "opcode",
) -> Iterator[Interrupt]:
    """Raise ``error`` at a place, in a handler that :func:`handle_at` calls."""

    def handler(place: Place) -> None:
        raise error(f"raised before {place}")

    with handle_at(n, handler, by=by) as interrupt:
        yield interrupt


def places_of(
    call: Callable[[], object], *, by: Literal["line", "opcode"] = "opcode"
) -> dict[Place, int]:
    """Return the places that ``call`` runs in this thread, and the number of each.

    Lines that begin with ``with`` and the NOP of a ``try:`` are left out, here and when an
    exception is raised. The interpreter calls no signal handler between the end of a with block and
    its ``__exit__``, nor between ``__enter__`` and a ``try:``.
    """
    with Interrupt(None, by).watching() as interrupt:
        call()
    return interrupt.met


def _place(frame: FrameType) -> Place:
    callers, outer = [], frame.f_back
    while outer is not None:
        if _is_of_package(outer.f_code):
            callers.append(outer.f_code.co_name)
        outer = outer.f_back
    return Place(
        file=frame.f_code.co_filename.removeprefix(_PACKAGE),
        function=frame.f_code.co_name,
        line=frame.f_lineno,
        opcode=_opcode(frame),
        callers=tuple(callers),
    )


def _is_of_package(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE)


@functools.cache
def _is_of_with(code: CodeType, line: int) -> bool:
    return linecache.getline(code.co_filename, line).lstrip().startswith("with ")


def _opcode(frame: FrameType) -> str:
    return _opcodes(frame.f_code).get(frame.f_lasti, "")


@functools.cache
def _opcodes(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}
