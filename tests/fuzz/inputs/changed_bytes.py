"""One change to a sequence of bytes, as storage, transfer or an attacker may make it."""

from __future__ import annotations

from random import Random

_INTEGERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (
    b"\xff",
    b"\xed\xa0\x80",
    b"\0",
    b"\\ud800",
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"{}",
    b'"',
    b"\n",
    b"9" * 25,
    b"9" * 5000,
    b"[" * 300,
    b"[" * 100_000,
    b'{"a":' * 2000,
)


def changed(random: Random, content: bytes) -> bytes:
    """Return the content with one change."""
    return random.choice(_CHANGES)(random, content)


def _flipped(random: Random, content: bytes) -> bytes:
    if not content:
        return b"\0"
    data = bytearray(content)
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _byte(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.randbytes(1) + content[at + 1 :]


def _cut_off(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _without(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    return content[:start] + content[end:]


def _with_noise(random: Random, content: bytes) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.randbytes(random.randint(1, 16)) + content[at:]


def _with_text(random: Random, content: bytes) -> bytes:
    at, replaced = random.randrange(len(content) + 1), random.choice((0, 0, 1, 4))
    return content[:at] + random.choice(_TEXTS) + content[at + replaced :]


def _twice(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    return content[:end] + content[start:]


def _swapped(random: Random, content: bytes) -> bytes:
    a, b, c, d = sorted(random.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _spliced(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    at = random.randrange(len(content) + 1)
    return content[:at] + content[start:end] + content[at + end - start :]


def _integer(random: Random, content: bytes) -> bytes:
    size = random.choice((1, 2, 4, 8))
    value = random.choice(_INTEGERS) & ((1 << 8 * size) - 1)
    at = random.randrange(len(content) + 1)
    return (
        content[:at] + value.to_bytes(size, random.choice(("little", "big"))) + content[at + size :]
    )


def _zeros(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    return content[:start] + bytes(end - start) + content[end:]


def _range(random: Random, content: bytes) -> tuple[int, int]:
    """Return a range, mostly a short one."""
    start = random.randrange(len(content) + 1)
    longest = len(content) - start
    return start, start + random.randint(0, min(longest, random.choice((8, 64, 512, longest))))


_CHANGES = (
    _flipped,
    _flipped,
    _byte,
    _cut_off,
    _without,
    _with_noise,
    _with_text,
    _twice,
    _swapped,
    _spliced,
    _integer,
    _integer,
    _zeros,
)
