"""Texts of JSON: most are changed as values, the others byte by byte."""

from __future__ import annotations

import json
from random import Random

from tests.fuzz.inputs import changed_values
from tests.fuzz.inputs.kind import Kind


class JsonTexts(Kind):
    """A kind whose examples are JSON."""

    def change(self, random: Random, content: bytes) -> bytes:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return super().change(random, content)
        if random.random() < 0.3:
            return super().change(random, content)
        return changed_values.to_json(changed_values.changed(random, value, plain=True))
