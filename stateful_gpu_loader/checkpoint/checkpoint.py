"""Checkpoint: the states of many objects in one file, and back."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

from stateful_gpu_loader.checkpoint import document, files
from stateful_gpu_loader.checkpoint.document import SavedState
from stateful_gpu_loader.checkpoint.files import Pattern, Stamp
from stateful_gpu_loader.checkpoint.objects import (
    Stateful,
    put_all,
    saved_state,
    type_name,
)
from stateful_gpu_loader.errors import CheckpointError
from stateful_gpu_loader.state.typed_json import is_text

AUTOMATIC = "__object_"
"""Prefix of the names that :meth:`Checkpoint.register` gives."""


class _Threads(threading.local):
    def __init__(self) -> None:
        self.entered: list[Checkpoint] = []
        """This thread's own checkpoint, then those of its ``with`` blocks."""


_threads = _Threads()


class Checkpoint:
    """States of loaders, samplers, generators, modules, optimizers and DALI readers, in one file.

    It accepts objects with ``state_dict`` and ``load_state_dict``; with ``get_state`` and
    ``set_state`` (DALI's readers and RNGs, torch.Generator); with ``getstate`` and ``setstate``
    (random.Random, and the modules ``random`` and ``numpy.random`` for their global generators);
    and NumPy's generators. Nothing is pickled.

    At the beginning of a run, load, then register: each object continues from its state. During the
    run, collect and save.

    >>> import tempfile
    >>> from stateful_gpu_loader import RNG
    >>> folder = tempfile.TemporaryDirectory()
    >>> pattern = f"{folder.name}/run_{{seq:04d}}.json"
    >>> rng = RNG(42)
    >>> checkpoint = Checkpoint()
    >>> checkpoint.register(rng, "rng")
    'rng'
    >>> first = rng.uniform()
    >>> checkpoint.collect()
    >>> os.path.basename(checkpoint.save(pattern, keep=3))
    'run_0000.json'

    And in the resumed run:

    >>> restored, resumed = RNG(0), Checkpoint()
    >>> os.path.basename(resumed.load(pattern))
    'run_0000.json'
    >>> resumed.register(restored, "rng")
    'rng'
    >>> restored.uniform() == rng.uniform()
    True
    >>> folder.cleanup()
    """

    def __init__(self) -> None:
        self.clear()

    @staticmethod
    def current() -> Checkpoint:
        """Return this thread's checkpoint, for code that receives none.

        Inside ``with checkpoint:`` it is that checkpoint; elsewhere the thread's own, which lasts
        as long as the thread. It corresponds to
        ``nvidia.dali.experimental.dynamic.checkpoint.current()``. Objects stay registered, so begin
        a second run in the same thread with ``clear()``, or in its own ``with Checkpoint():``.

        >>> def build_noise():
        ...     from stateful_gpu_loader import RNG
        ...     noise = RNG(7)
        ...     Checkpoint.current().register(noise, "noise")
        ...     return noise
        >>> with Checkpoint() as checkpoint:
        ...     noise = build_noise()
        >>> checkpoint.names, Checkpoint.current().names
        (('noise',), ())
        """
        if not _threads.entered:
            _threads.entered.append(Checkpoint())
        return _threads.entered[-1]

    def __enter__(self) -> Checkpoint:
        """Make this checkpoint the thread's :meth:`current` one until the block ends."""
        Checkpoint.current()  # the thread's own is below all others
        _threads.entered.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _threads.entered.pop()

    def clear(self) -> None:
        """Forget all objects and states, as in a new checkpoint. The objects keep their state.

        >>> checkpoint = Checkpoint()
        >>> checkpoint.set_state("step", 3)
        >>> checkpoint.clear()
        >>> checkpoint.is_loaded, checkpoint.names
        (False, ())
        """
        self._objects: dict[str, Stateful] = {}
        self._states: dict[str, SavedState] = {}
        self._pending: set[str] = set()
        self._is_complete = False
        self._is_loaded = False
        self._is_set = False
        self._known_files: set[Stamp] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the registered objects, in order of registration."""
        return tuple(self._objects)

    @property
    def is_complete(self) -> bool:
        """Whether the states come from the last :meth:`collect`, and none was set since."""
        return self._is_complete and not self._is_set

    @property
    def is_loaded(self) -> bool:
        """Whether the states come from :meth:`load` or :meth:`deserialize`."""
        return self._is_loaded

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: object) -> bool:
        return name in self._objects

    def __repr__(self) -> str:
        where = "collected" if self.is_complete else "loaded" if self._is_loaded else "set"
        states = f"{len(self._states)} states {where}" if self._states else "no states"
        return f"<Checkpoint of {list(self._objects)}, {states}>"

    def register(self, thing: Any, name: str | None = None) -> str:
        """Add an object, and apply the state loaded under its name, if any, at once.

        If the object refuses its state, it is not registered, and the state is kept.

        Args:
            thing: the object; it is kept, not copied. Register a DALI reader before it is iterated.
            name: its key in the file; None numbers the objects without a name. An object that is
                registered again keeps its name.

        Returns:
            Its name.

        Raises:
            CheckpointError: the object has no state that can be taken and restored, its name is
                taken, it already has another name, or the states are complete. Or the loaded states
                have none for it, one of another type, or one that it refuses.

        >>> from stateful_gpu_loader import RNG
        >>> checkpoint = Checkpoint()
        >>> checkpoint.register(RNG(0), "crops"), checkpoint.register(RNG(1))
        ('crops', '__object_0')
        """
        name = self._name_for(thing, name)
        stateful = Stateful(name, thing)
        if name not in self._objects:
            self._check_open(stateful)
            stateful.prepare()
        if name in self._pending:
            put_all({name: stateful}, self._states)
            self._pending.discard(name)
        self._objects[name] = stateful
        return name

    def collect(self) -> None:
        """Take copies of the present states of all objects.

        Raises:
            CheckpointError: nothing is registered, a loaded or set state was not applied yet, or an
                object does not return its state. Nothing is changed.

        >>> from stateful_gpu_loader import RNG
        >>> checkpoint = Checkpoint()
        >>> name = checkpoint.register(RNG(42))
        >>> checkpoint.collect()
        >>> checkpoint.is_complete
        True
        """
        if not self._objects:
            raise CheckpointError(
                "nothing is registered, so there is no state to collect. Remedy: register() first"
            )
        self._check_no_strangers()
        if self._pending:
            raise CheckpointError(
                f"collecting would lose the states of {sorted(self._pending)}, loaded or set and "
                "not applied. Remedy: restore() them first, or begin with a new Checkpoint"
            )
        self._states = {name: stateful.take() for name, stateful in self._objects.items()}
        self._is_complete, self._is_loaded, self._is_set = True, False, False

    def restore(self) -> None:
        """Apply the loaded, set or last collected states to all objects.

        Everything is checked before anything is changed. If an object refuses its state, earlier
        objects get their former states back.

        Raises:
            CheckpointError: there are no states, a state has no object, an object has no state or
                one of another type, an object refuses its state, or a DALI reader was iterated.

        >>> from stateful_gpu_loader import RNG
        >>> rng, checkpoint = RNG(42), Checkpoint()
        >>> name = checkpoint.register(rng)
        >>> checkpoint.collect()
        >>> first = rng.uniform()
        >>> checkpoint.restore()
        >>> rng.uniform() == first
        True
        """
        if not self._states:
            raise CheckpointError(
                "there is no state to restore. Remedy: load(), deserialize() or collect() first"
            )
        self._check_no_strangers()
        missing = [name for name in self._objects if name not in self._states]
        if missing:
            raise CheckpointError(
                f"there is no state for {missing}, only for {list(self._states)}. Remedy: load the "
                "checkpoint that has them, or set_state() them"
            )
        put_all(self._objects, self._states)
        self._pending.clear()

    def get_state(self, name: str) -> Any:
        """Return a copy of the state held under a name, even if no object is registered for it.

        Raises:
            CheckpointError: there is no such state.

        >>> checkpoint = Checkpoint()
        >>> checkpoint.set_state("sampler", {"position": 8})
        >>> checkpoint.get_state("sampler")
        {'position': 8}
        """
        if name not in self._states:
            what = "was collected yet" if name in self._objects else "is known"
            held = f"there are states of {list(self._states)}" if self._states else "there are none"
            raise CheckpointError(
                f"no state of {name!r} {what}; {held}, registered are {list(self._objects)}. "
                "Remedy: collect() or load() first, and pass one of these names"
            )
        return self._states[name].state

    def set_state(self, name: str, state: Any, object_type: type | str | None = None) -> None:
        """Hold a state, which :meth:`restore` or a later :meth:`register` applies.

        Args:
            name: name of the object.
            state: value for its ``load_state_dict`` or ``set_state``; copied.
            object_type: class of the object, or its full name, which is checked before the state is
                applied; None for any.

        Raises:
            CheckpointError: the name or the type is not valid, the state has no form in a file,
                or the states are complete and no object has this name.
        """
        _check_text(name)
        if self._is_complete and name not in self._objects:
            raise CheckpointError(
                f"no object is registered as {name!r} since the states were collected, only "
                f"{list(self._objects)}. Remedy: pass one of these names, or clear() first"
            )
        if not isinstance(object_type, (type, str, type(None))):
            raise CheckpointError(
                f"{object_type = } is not a class. Remedy: pass a class or its full name"
            )
        named = type_name(object_type) if isinstance(object_type, type) else object_type
        if named is not None:
            _check_text(named)
        self._states[name] = saved_state(name, named, state)
        self._is_set = True
        self._pending.add(name)

    def serialize(self) -> str:
        """Return the states as JSON text with a version and a checksum, and tensors in base64.

        :meth:`save` writes raw bytes of tensors and arrays instead.

        Raises:
            CheckpointError: there are no states.

        >>> checkpoint = Checkpoint()
        >>> checkpoint.set_state("sampler", {"position": 8})
        >>> restored = Checkpoint()
        >>> restored.deserialize(checkpoint.serialize())
        >>> restored.get_state("sampler")
        {'position': 8}
        """
        return document.to_text(self._held_states())

    def deserialize(self, text: str | bytes) -> None:
        """Replace the held states by those in a text, or in a file's content.

        They are applied by :meth:`register` or :meth:`restore`.

        Raises:
            CheckpointError: the text is truncated, altered, empty, foreign or of a later version.
                Nothing is changed.
        """
        self._adopt(document.from_text(text))

    def save(self, path: str | os.PathLike[str], *, keep: int | None = None) -> str:
        """Write the states to a file, completely and durably or not at all.

        A full disk or a kill at any moment leaves earlier files intact. Several processes may save
        to one pattern: each gets its own number.

        Args:
            path: ``"run_{seq:04d}.json"`` writes a new file with the highest existing number plus
                one. Without ``{seq}``, the one file is replaced. Write braces as ``{{`` and ``}}``.
                Missing folders are created.
            keep: number of newest intact checkpoints of this pattern to keep; older ones are
                removed once the new file is durable. None removes none.

        Returns:
            Path of the file.

        Raises:
            CheckpointError: there are no states, the path or ``keep`` is not valid, or the file
                could not be written.
        """
        pattern = Pattern.of(path)
        _check_keep(keep, pattern)
        data = document.to_bytes(self._held_states())
        number, written = files.write(pattern, data)
        if keep is not None:
            failures = files.remove_old(pattern, newest=number, keep=keep, known=self._known_files)
            for old, failure in failures.items():
                warnings.warn(
                    f"the old checkpoint {old} was not removed: {failure.strerror}", stacklevel=2
                )
        return written

    def load(self, path: str | os.PathLike[str]) -> str:
        """Read the states of a file; :meth:`register` or :meth:`restore` applies them.

        Args:
            path: ``"run_{seq:04d}.json"`` takes the highest number whose file is intact, and warns
                about skipped files. Without ``{seq}``, it is the file. A path that :meth:`save`
                returned is that file, with or without braces.

        Returns:
            Path of the file that was read.

        Raises:
            CheckpointNotFound: (a FileNotFoundError) there is no such file.
            CheckpointError: the file is truncated, altered, empty, foreign or of a later version,
                or all files of the pattern are. Nothing is changed.
        """
        pattern = Pattern.to_read(path)
        if pattern.is_numbered:
            found, states, passed_over = files.read_newest(pattern)
            for other, reason in passed_over.items():
                warnings.warn(f"{other} is passed over for {found}: {reason}", stacklevel=2)
        else:
            found = pattern.path()
            data = files.read(found)
            try:
                states = document.from_text(data)
            except CheckpointError as damage:
                raise CheckpointError(f"{found}: {damage}") from damage
        self._adopt(states)
        return found

    def _held_states(self) -> dict[str, SavedState]:
        if not self._states:
            raise CheckpointError(
                "there are no states to save. Remedy: register() objects and collect() first"
            )
        return self._states

    def _name_for(self, thing: Any, name: str | None) -> str:
        known = next((key for key, other in self._objects.items() if other.object is thing), None)
        if name is None:
            number = sum(key.startswith(AUTOMATIC) for key in self._objects)
            return known or f"{AUTOMATIC}{number}"
        self._check_name(name)
        if known is not None and known != name:
            raise CheckpointError(
                f"the object to be registered as {name!r} ({type_name(thing)}) is already "
                f"registered as {known!r}. Remedy: use one name for one object"
            )
        if known is None and name in self._objects:
            raise CheckpointError(
                f"the name {name!r} belongs to another object, of type "
                f"{self._objects[name].type_name}; this one is of type {type_name(thing)}. "
                "Remedy: pass another name"
            )
        return name

    @staticmethod
    def _check_name(name: str) -> None:
        _check_text(name)
        if name.startswith(AUTOMATIC):
            raise CheckpointError(
                f"{name = } begins with {AUTOMATIC!r}, as automatic names do. Remedy: pass "
                "another, or None"
            )

    def _check_open(self, stateful: Stateful) -> None:
        if self._is_complete:
            raise CheckpointError(
                f"{stateful} comes too late: the states of {list(self._objects)} are collected. "
                "Remedy: register all objects before collect(), or clear() and register them again"
            )
        if self._is_loaded and stateful.name not in self._states:
            raise CheckpointError(
                f"what was loaded has no state for {stateful}, only for {list(self._states)}. "
                "Remedy: register it under one of these names, or set_state() it"
            )

    def _check_no_strangers(self) -> None:
        strangers = [name for name in self._states if name not in self._objects]
        if strangers:
            raise CheckpointError(
                f"there is no object for the states of {strangers}, registered are "
                f"{list(self._objects)}. Remedy: register the objects of these names, or clear()"
            )

    def _adopt(self, states: dict[str, SavedState]) -> None:
        self._states, self._pending = states, set(states)
        self._is_complete, self._is_loaded = False, True


def _check_text(name: object) -> None:
    if not isinstance(name, str) or not name or not is_text(name):
        raise CheckpointError(
            f"{name = } is not a valid name. Remedy: pass a str with at least one character "
            "and no surrogates"
        )


def _check_keep(keep: int | None, pattern: Pattern) -> None:
    if keep is None:
        return
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise CheckpointError(
            f"{keep = } is not a number of files. Remedy: pass an int of 1 or more, or None"
        )
    if not pattern.is_numbered:
        raise CheckpointError(
            f"{keep = } counts numbered files, but {pattern.text!r} is a single file. "
            "Remedy: leave keep out, or put {seq} into the name"
        )
