"""The command ``diff``: the differences between two states, and the distance between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateful_gpu_loader.cli.output import JsonOption, console, print_json, visible
from stateful_gpu_loader.cli.target import WhereOption

if TYPE_CHECKING:
    from stateful_gpu_loader.tools.compare_states import Comparison, Difference, Pair


_SHORT = 60
"""Length in characters up to which two texts are shown whole."""
_LONGEST = 240
_CALL = re.compile(r"([\w.=]*[(\[{])(.*)([)\]}])", re.DOTALL)
"""A call or list in a description: what it begins with, its items, its closing bracket."""


def diff(
    first: Annotated[
        Path,
        typer.Argument(metavar="A", help="A file or folder with a state, as for inspect."),
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another file or folder.")],
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how two states differ, and whether they fit one loader.

    The result says how far apart they are, and whether the loader of A can load B. If the files
    hold several states, the states at the same place of both files are compared. Exit status: 0 the
    same loader at the same place, 1 something differs, 2 there is no state or it is damaged.
    """
    from stateful_gpu_loader.tools.compare_states import compare_files

    pairs = compare_files(first, second, where)
    if as_json:
        print_json([_plain(pair) for pair in pairs])
    else:
        for pair in pairs:
            for line in _lines(pair, first, second):
                console().print(visible(line), markup=False)
    if not all(pair.comparison and pair.comparison.is_same for pair in pairs):
        raise typer.Exit(1)


def _plain(pair: Pair) -> dict[str, Any]:
    found = {"where": pair.where, "in_first": bool(pair.first), "in_second": bool(pair.second)}
    return {**found, "comparison": pair.comparison and pair.comparison.to_dict()}


def _lines(pair: Pair, first: Path, second: Path) -> Iterator[str]:
    if pair.where:
        yield f"{pair.where}:"
    if pair.comparison is None:
        yield f"  only {first if pair.second is None else second} has a state there"
        return
    for each in pair.comparison.differences:
        meaning = f" ({each.meaning})" if each.meaning else ""
        before, now = _only_different(_said(each, each.first), _said(each, each.second))
        yield f"  {each.field}: {before} -> {now}{meaning}"
    yield f"  {_verdict(pair.comparison)}"


def _verdict(found: Comparison) -> str:
    if found.resumes is None:
        place = "the same place" if found.same_place else "different places"
        return f"{place}; one state does not describe its loader, so it may be another loader"
    if not found.resumes:
        names = f"accept={{{', '.join(map(repr, found.accept))}}}"
        if not found.accept_is_enough:
            return "the loader of A refuses B, whatever accept= names"
        return f"the loader of A refuses B; with {names} it accepts the fingerprint"
    if found.is_same:
        return "the same loader at the same place"
    if not found.same_identity:
        return "the loader of A accepts B only with seed=None, or with accept={'seed'}"
    return f"the same loader; the loader of A can resume from B, which is {_apart(found)}"


def _apart(found: Comparison) -> str:
    if found.same_place:
        return "at the same place"
    if found.samples_apart is None and found.batches_apart is None:
        return "at another place, at an unknown distance"
    apart = {"samples": found.samples_apart, "batches": found.batches_apart}
    counted = [f"{abs(n)} {unit}" for unit, n in apart.items() if n is not None]
    numbers = [n for n in apart.values() if n is not None]
    if not any(numbers):
        return "equally far; the differences in place are listed above"
    return f"{' or '.join(counted)} {'ahead' if max(numbers) > 0 else 'behind'}"


def _said(difference: Difference, value: Any) -> str:
    from stateful_gpu_loader.samplers.choice import order_in_words
    from stateful_gpu_loader.tools.compare_states import PLACE

    if value is not None:
        return order_in_words(value) if difference.field == "order" else str(value)
    if difference.field == "on_bad_sample":
        return "raise"
    return "nothing" if difference.kind == PLACE else "unknown"


def _only_different(first: str, second: str) -> tuple[str, str]:
    """Return two descriptions with "..." in place of long parts that are equal in both.

    >>> crop, flip = "Crop(size=(24, 24), scale=(0.08, 1.0), antialias=True)", "Flip(p=0.5)"
    >>> _only_different(f"Compose([{crop}, {flip}])", f"Compose([{crop}, Flip(p=0.25)])")
    ('Compose([..., Flip(p=0.5)])', 'Compose([..., Flip(p=0.25)])')
    """
    if max(len(first), len(second)) <= _SHORT:
        return first, second
    calls = _CALL.fullmatch(first), _CALL.fullmatch(second)
    if not (calls[0] and calls[1]) or calls[0][1] != calls[1][1]:
        return _cut(first), _cut(second)
    one, other = _items(calls[0][2]), _items(calls[1][2])
    names = [[_name_of(item) for item in items] for items in (one, other)]
    found: tuple[list[str], list[str]] = [], []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, names[0], names[1]).get_opcodes():
        if kind != "equal":
            found[0].extend(one[i:i_end])
            found[1].extend(other[j:j_end])
            continue
        for pair in zip(one[i:i_end], other[j:j_end], strict=True):
            for texts, text in zip(found, _only_different(*pair), strict=True):
                if pair[0] != pair[1]:
                    texts.append(text)
                elif texts[-1:] != ["..."]:
                    texts.append("...")
    before, now = (f"{calls[0][1]}{', '.join(items)}{calls[0][3]}" for items in found)
    return _cut(before), _cut(now)


def _name_of(item: str) -> str:
    """Return the function or keyword that an item begins with."""
    return item.partition("(")[0].partition("=")[0]


def _items(text: str) -> list[str]:
    """Return the items of a list or call, split at the commas outside of inner brackets."""
    items, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
