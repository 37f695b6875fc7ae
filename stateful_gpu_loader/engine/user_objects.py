"""Objects of the user's that carry state, by torchdata's protocol."""

from __future__ import annotations

from typing import Any

from stateful_gpu_loader.errors import StateMismatch
from stateful_gpu_loader.state import Stateful


def state_of(thing: Any) -> Any:
    """Its state, or None."""
    return thing.state_dict() if isinstance(thing, Stateful) else None


def load_user_state(role: str, thing: Any, state: Any) -> None:
    """Load a state that is not None.

    Raises:
        StateMismatch: the object takes none.
    """
    if state is None:
        return
    if not isinstance(thing, Stateful):
        raise StateMismatch(
            f"{role}'s state",
            saved=state,
            present=f"{type(thing).__name__}, which has no load_state_dict()",
            remedy=f"build the loader with the {role} that the state was saved with",
        )
    thing.load_state_dict(state)
