"""Texts of JSON: most are changed as values, the others byte by byte."""

from __future__ import annotations

import json
from random import Random

from tests.fuzz.inputs import changed_bytes, changed_values
from tests.fuzz.inputs.kind import Kind


def changed_json(random: Random, content: bytes) -> bytes:
    """Return the content with one change."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return changed_bytes.changed(random, content)
    if random.random() < 0.3:
        return changed_bytes.changed(random, content)
    return changed_values.to_json(changed_values.changed(random, value, plain=True))


class JsonTexts(Kind):
    """A kind whose examples are JSON."""

    def change(self, random: Random, content: bytes) -> bytes:
        return changed_json(random, content)
