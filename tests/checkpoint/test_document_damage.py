"""Texts that were cut, altered or forged, or never were checkpoints: refused with the reason."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stateful_gpu_loader.checkpoint.document import SavedState, from_text, to_text
from stateful_gpu_loader.errors import CheckpointError
from tests.state.typed_values import values

WHOLE = Path(__file__).with_name("version_1.json").read_bytes()
REVERSED = dict(reversed(json.loads(WHOLE).items()))
TIME = '"time": "2026-01-01T00:00:00+00:00", "libraries": {}, '


def refusal(data: bytes | str) -> str:
    with pytest.raises(CheckpointError, match="Remedy: ") as caught:
        from_text(data)
    return str(caught.value)


def forged(rest: str, *, version: int = 1) -> bytes:
    """A text whose checksum is right, whatever it says."""
    data = f"{rest}}}\n".encode("utf-8", "surrogatepass")
    head = f'{{"format": "stateful_gpu_loader checkpoint", "version": {version}, '.encode()
    head += f'"length": {len(data)}'.encode()
    return head + f', "sha256": "{hashlib.sha256(head + data).hexdigest()}",\n'.encode() + data


def test_a_text_cut_at_any_byte_is_truncated() -> None:
    """E6"""
    assert "is empty: 0 bytes" in refusal(b"")
    for length in range(1, len(WHOLE)):
        assert "the checkpoint is truncated: " in refusal(WHOLE[:length])
    assert "truncated: 20 bytes are missing" in refusal(WHOLE[:-20])


def test_every_flipped_bit_is_found() -> None:
    """E6: also those that leave JSON, white space, the time or the versions of libraries valid."""
    length = range(WHOLE.index(b'"length": ') + 10, WHOLE.index(b', "sha256"'))
    for number in range(8 * len(WHOLE)):
        data = bytearray(WHOLE)
        data[number // 8] ^= 1 << number % 8
        message = refusal(bytes(data))
        assert "was altered" in message or (number // 8 in length and "is truncated" in message)


@given(st.data())
def test_edits_are_found(data: st.DataObject) -> None:
    """E6: bytes replaced, inserted, removed, moved."""
    text = to_text({"a": SavedState.of("t", data.draw(values))}).encode()
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    altered = text[:first] + data.draw(st.binary(max_size=5)) + text[last:]
    if altered != text:
        refusal(altered)


@given(st.binary(max_size=50), st.booleans())
def test_any_bytes_are_refused(data: bytes, begins_well: bool) -> None:
    """G6"""
    refusal((WHOLE[:56] if begins_well else b"") + data)


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b" \n", "\n"])
def test_nothing_is_empty(data: bytes | str) -> None:
    """What a power failure leaves of a file that was not synced is zeros."""
    assert "the checkpoint is empty" in refusal(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (WHOLE + b"\n", "1 bytes follow its end"),
        (WHOLE + WHOLE, f"{len(WHOLE)} bytes follow its end"),
        (WHOLE.replace(b"\n", b"\r\n"), "its first line is not as it was written"),
        (WHOLE.replace(b"\n", b""), "its first line is not as it was written"),
        (b" " + WHOLE, "its first line is not as it was written"),
        (b"\xef\xbb\xbf" + WHOLE, "its first line is not as it was written"),
        (WHOLE.replace(b'"2.4.6"', b'"2.4.7"'), "its checksum does not fit"),
        (WHOLE.replace(b'": ', b'" :'), "its first line is not as it was written"),
        (json.dumps(json.loads(WHOLE), indent=2), "its first line is not as it was written"),
        (json.dumps(json.loads(WHOLE), sort_keys=True), "its first line is not as it was written"),
        (json.dumps(REVERSED), "its JSON was written anew by another program"),
    ],
    ids=range(11),
)
def test_a_text_that_another_program_wrote_anew_is_altered(data: bytes, reason: str) -> None:
    assert f"the checkpoint was altered: {reason}" in refusal(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"version": 2, "states": {"reader": {"state": "CgQ", "type": "File"}}}', "JSON of an"),
        (b"[1, 2, 3]", "JSON of another format"),
        (b"3", "JSON of another format"),
        (b"PK\x03\x04 what torch.save() writes", r"no JSON; it begins with b'PK\x03\x04"),
        (b"hello", "no JSON; it begins with b'hello'"),
        (b"\xff" * 100, "no JSON; it begins with"),
        (b"[" * 100_000, "no JSON; it begins with"),
        ("\ud800", "no JSON; it begins with"),
    ],
    ids=range(8),
)
def test_what_never_was_a_checkpoint_is_foreign(data: bytes | str, reason: str) -> None:
    message = refusal(data)
    assert "the text is no checkpoint of stateful_gpu_loader: " in message
    assert reason in message


def test_a_later_version_is_named_once_its_checksum_fits() -> None:
    later = forged('"anything": {"at": "all"}', version=2)
    assert "is of version 2, of which this stateful_gpu_loader reads up to 1" in refusal(later)
    assert "was altered: its checksum does not fit" in refusal(later.replace(b"all", b"ALL"))


def test_forged_texts_are_otherwise_right() -> None:
    """Else the test below would prove nothing."""
    assert from_text(forged(TIME + '"states": {"a": {"type": null, "state": 1}}')) == {
        "a": SavedState.of(None, 1)
    }


@pytest.mark.parametrize(
    "rest",
    [
        TIME + '"states": {"a": {"type": null, "state": 1}, "a": {"type": null, "state": 2}}',
        TIME + '"states": {"a": {"type": null, "state": {"b": 1, "b": 2}}}',
        TIME + '"states": {"a": {"type": null, "state": NaN}}',
        TIME + '"states": {"a": {"type": null, "state": 1e999}}',
        TIME + '"states": {"a": {"type": null, "state": ' + "9" * 100_000 + "}}",
        TIME + '"states": {"a": {"type": null, "state": ' + "9" * 350 + "}}",
        TIME + '"states": {"a": {"type": null, "state": ' + "[" * 100_000 + "}}",
        TIME + '"states": {"a": {"type": null, "state": ' + "[" * 100 + "]" * 100 + "}}",
        TIME + '"states": {"a": {"type": null, "state": {"$reduce": ["os.system", "true"]}}}',
        TIME + '"states": {"a": {"type": null, "state": "\ud800"}}',
        TIME + '"states": {"a": {"type": null, "state": "\\ud800"}}',
        TIME + '"states": {"a": {"type": 1, "state": 1}}',
        TIME + '"states": {"a": {"type": null}}',
        TIME + '"states": {"a": {"state": 1, "type": null}}',
        TIME + '"states": {"a": {"type": null, "state": 1, "more": 1}}',
        TIME + '"states": {"a": [null, 1]}',
        TIME + '"states": []',
        TIME + '"states": {}, "more": 1',
        '"states": {}',
        TIME + '"states": {}, "version": 1',
        TIME + '"states": {',
        "",
    ],
    ids=range(22),
)
def test_a_forged_content_is_refused(rest: str) -> None:
    """G6: the checksum is no signature, so what follows it is trusted no more."""
    message = refusal(forged(rest))
    assert "is whole, and holds what cannot be read here: " in message
    assert "Remedy: install the versions" in message
    assert len(message) < 1000


def test_a_forged_claim_of_a_gigabyte_allocates_nothing() -> None:
    """E6"""
    claim: Any = {"$tensor": {"dtype": "float32", "shape": [1 << 28], "data": "AAAA"}}
    states = {"a": {"type": None, "state": claim}}
    data = forged(TIME + f'"states": {json.dumps(states)}')
    tracemalloc.start()
    try:
        assert "3 bytes instead of 1073741824" in refusal(data)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "form",
    [
        '{"$dtype": "float4_of_later"}',
        '{"$tensor": {"dtype": "float4_of_later", "shape": [1], "data": "AQ=="}}',
    ],
)
def test_a_dtype_that_this_torch_lacks_is_no_damage(form: str) -> None:
    """E6: another copy of the file would not help."""
    message = refusal(forged(TIME + f'"states": {{"a": {{"type": null, "state": {form}}}}}'))
    assert f"'float4_of_later' is no dtype of torch {torch.__version__}" in message
    assert "altered" not in message
    assert "install the versions of libraries that its second line names" in message
