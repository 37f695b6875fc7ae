"""State as text: ``get_state`` and ``set_state``, the methods that DALI's Checkpoint calls."""

from __future__ import annotations

from typing import Any, Protocol

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state.typed_json import decode, encode, parse, write


class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> None: ...


class TextState:
    """Adds ``get_state`` and ``set_state``, which use one string, to torch's two methods.

    So ``nvidia.dali.experimental.dynamic.checkpoint.Checkpoint`` accepts the object.

    >>> class Counter(TextState):
    ...     n = 0
    ...     def state_dict(self):
    ...         return {"n": self.n}
    ...     def load_state_dict(self, state_dict):
    ...         self.n = state_dict["n"]
    >>> counter = Counter()
    >>> counter.set_state('{"n": 3}')
    >>> counter.get_state()
    '{"n": 3}'
    """

    def get_state(self: _Stateful, *, cuda_stream: Any = None) -> str:
        """Return ``state_dict()`` as JSON.

        Args:
            cuda_stream: not used; DALI's Checkpoint passes it.

        Raises:
            TypeError: the state holds a user's object that has no JSON form.
        """
        return write(encode(self.state_dict()))

    def set_state(self: _Stateful, state: str) -> None:
        """Call ``load_state_dict`` with the state that :meth:`get_state` returned.

        Raises:
            StateMismatch: the text is not a state, or does not fit; nothing was changed.
        """
        try:
            state_dict = decode(parse(state.encode()))
        except (AttributeError, ValueError) as error:
            raise _no_state(state, str(error)) from error
        if not isinstance(state_dict, dict):
            raise _no_state(state, "no state")
        self.load_state_dict(state_dict)


def _no_state(state: Any, reason: str) -> StateMismatch:
    return StateMismatch(
        "state",
        saved=state,
        present=f"JSON of a state_dict ({reason})",
        remedy="pass what get_state() returned, unchanged",
    )
