"""Truncated, altered, forged and foreign contents are refused with the reason."""

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

from stateful_gpu_loader.checkpoint.document import SavedState, from_text, to_bytes
from stateful_gpu_loader.errors import CheckpointError
from tests.state.typed_values import values

WHOLE, WITH_RAW = (
    Path(__file__).with_name(f"version_{number}.json").read_bytes() for number in (1, 2)
)
EACH_VERSION = pytest.mark.parametrize("whole", [WHOLE, WITH_RAW], ids=["1", "2"])
REVERSED = dict(reversed(json.loads(WHOLE).items()))
TIME = '"time": "2026-01-01T00:00:00+00:00", "libraries": {}, '


def refusal(data: bytes | str) -> str:
    with pytest.raises(CheckpointError, match="Remedy: ") as caught:
        from_text(data)
    return str(caught.value)


def forged(rest: str, *, version: int = 1, raw: bytes = b"") -> bytes:
    """Return a content with a valid checksum, whatever else it says."""
    data = f"{rest}}}\n".encode("utf-8", "surrogatepass") + raw
    head = f'{{"format": "stateful_gpu_loader checkpoint", "version": {version}, '.encode()
    head += f'"length": {len(data)}'.encode()
    return head + f', "sha256": "{hashlib.sha256(head + data).hexdigest()}",\n'.encode() + data


@EACH_VERSION
def test_a_text_cut_at_any_byte_is_truncated(whole: bytes) -> None:
    assert "is empty: 0 bytes" in refusal(b"")
    for length in range(1, len(whole)):
        assert "the checkpoint is truncated: " in refusal(whole[:length])
    assert "truncated: 20 bytes are missing" in refusal(whole[:-20])


@EACH_VERSION
def test_every_flipped_bit_is_found(whole: bytes) -> None:
    """Including flips in white space, the time and library versions, which leave valid JSON."""
    length = range(whole.index(b'"length": ') + 10, whole.index(b', "sha256"'))
    for number in range(8 * len(whole)):
        data = bytearray(whole)
        data[number // 8] ^= 1 << number % 8
        message = refusal(bytes(data))
        assert "was altered" in message or (number // 8 in length and "is truncated" in message)


@given(st.data())
def test_edits_are_found(data: st.DataObject) -> None:
    """Bytes are replaced, inserted, removed and moved."""
    content = to_bytes({"a": SavedState.of("t", data.draw(values))})
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    altered = content[:first] + data.draw(st.binary(max_size=5)) + content[last:]
    if altered != content:
        refusal(altered)


@given(st.binary(max_size=50), st.booleans())
def test_any_bytes_are_refused(data: bytes, begins_well: bool) -> None:
    refusal((WHOLE[:56] if begins_well else b"") + data)


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b" \n", "\n"])
def test_nothing_is_empty(data: bytes | str) -> None:
    """A power failure leaves zeros in a file that was not synced."""
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
        (json.dumps(REVERSED), "its JSON was written again by another program"),
    ],
    ids=range(11),
)
def test_a_text_rewritten_by_another_program_is_altered(data: bytes, reason: str) -> None:
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
def test_other_files_are_foreign(data: bytes | str, reason: str) -> None:
    message = refusal(data)
    assert "the text is not a checkpoint of stateful_gpu_loader: " in message
    assert reason in message


def test_a_later_version_is_named_once_its_checksum_fits() -> None:
    later = forged('"anything": {"at": "all"}', version=3)
    assert "is of version 3, of which this stateful_gpu_loader reads up to 2" in refusal(later)
    assert "was altered: its checksum does not fit" in refusal(later.replace(b"all", b"ALL"))


def with_raw(data: Any, raw: bytes, *, version: int = 2) -> bytes:
    """Return two tensors of three bytes each, the second with this data."""
    forms = [
        json.dumps({"$tensor": {"dtype": "uint8", "shape": [3], "data": place}})
        for place in ([0, 3], data)
    ]
    entry = f'"a": {{"type": null, "state": [{", ".join(forms)}]}}'
    return forged(TIME + f'"states": {{\n{entry}\n}}', version=version, raw=raw)


def test_forged_contents_are_otherwise_right() -> None:
    """Otherwise the tests below would prove nothing."""
    assert from_text(forged(TIME + '"states": {"a": {"type": null, "state": 1}}')) == {
        "a": SavedState.of(None, 1)
    }
    first, second = from_text(with_raw([3, 6], b"abcdef"))["a"].state
    assert bytes(first.tolist() + second.tolist()) == b"abcdef"


@pytest.mark.parametrize(
    ("data", "raw", "reason"),
    [
        ([0, 3], b"abc", "[0, 3] instead of the next range of 3 raw bytes"),
        ([4, 7], b"abcdefg", "[4, 7] instead of the next range"),
        ([2, 6], b"abcdef", "[2, 6] instead of the next range"),
        ([3, 7], b"abcdef", "[3, 7] instead of the next range"),
        ([3, 2], b"abcdef", "[3, 2] instead of the next range"),
        ([3, 1 << 62], b"abcdef", "instead of the next range"),
        ([3, 6, 6], b"abcdef", "[3, 6, 6] instead of the next range"),
        ([3, 6.0], b"abcdef", "[3, 6.0] instead of the next range"),
        ([3.0, 6], b"abcdef", "[3.0, 6] instead of the next range"),
        ([3, 3], b"abc", "state[1] is no value: 0 bytes instead of 3"),
        ("", b"abc", "state[1] is no value: 0 bytes instead of 3"),
        (6, b"abcdef", "6 instead of the next range"),
        ("AQID", b"abc", "'AQID' instead of the next range"),
        ([3, 6], b"abcdefgh", "2 raw bytes of no tensor or array"),
        ([3, 5], b"abcde", "state[1] is no value: 2 bytes instead of 3"),
    ],
    ids=range(15),
)
def test_raw_bytes_are_used_in_order_and_once(data: Any, raw: bytes, reason: str) -> None:
    """Otherwise a short text could claim the same raw bytes a thousand times."""
    assert reason in refusal(with_raw(data, raw))


def test_ranges_of_raw_bytes_are_of_version_2_alone() -> None:
    text = with_raw([3, 6], b"", version=1)
    assert "[0, 3] instead of base64" in refusal(text)
    assert "no line ends its text" in refusal(forged(TIME + '"states": {}', version=2))


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
        TIME + '"states": {"\\ud800": {"type": null, "state": 1}}',
        TIME + '"states": {"a": {"type": "\\ud800", "state": 1}}',
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
    ids=range(24),
)
def test_a_forged_content_is_refused(rest: str) -> None:
    """The checksum is no signature: content with a valid checksum is not trusted either."""
    message = refusal(forged(rest))
    assert "is intact, but this installation cannot read it: " in message
    assert "Remedy: install the versions" in message
    assert len(message) < 1000


def test_a_forged_claim_of_a_gigabyte_allocates_nothing() -> None:
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
def test_a_dtype_that_this_torch_lacks_is_not_damage(form: str) -> None:
    """Another copy of the file would not help."""
    message = refusal(forged(TIME + f'"states": {{"a": {{"type": null, "state": {form}}}}}'))
    assert f"'float4_of_later' is no dtype of torch {torch.__version__}" in message
    assert "altered" not in message
    assert "install the versions of libraries that its second line names" in message
