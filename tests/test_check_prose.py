"""The check of the English of docstrings, comments and Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_prose import MAX_WORDS, main

LONG = " ".join(["word"] * (MAX_WORDS + 1))

FAULTS = {
    "first word": ('"""Of a loader."""\n', "a.py:1: a docstring begins with 'Of'"),
    "value": ('A = 1\n\n"""What it is."""\n', "a.py:3: a docstring begins with 'What'"),
    "word": ("# Nobody reads it.\n", "a.py:1: 'Nobody'"),
    "phrase": ("a = 1  # a lock of one's own\n", 'a.py:1: "of one\'s own"'),
    "length": (f"# {LONG}.\n", f"a.py:1: a sentence of {MAX_WORDS + 1} words"),
    "lines": ("\n# One.\n# It begins anew.\n", "a.py:2: 'anew'"),
    "Markdown": ("# Title\n\n- One.\n- It was told.\n", "a.md:4: 'told'"),
    "cell": ("| a | behind |\n|---|---|\n", "a.md:1: 'behind'"),
}

SHORT = f"{' '.join(['Word'] * MAX_WORDS)}."

PASSES = {
    "code": ("a.md", "Call `told()` again.\n"),
    "fence": ("a.md", "```\nnobody = 1\n```\n"),
    "example": ("a.py", '"""Return it.\n\n>>> told = "anew"\n"""\n'),
    "sentences": ("a.py", f"# {SHORT} {SHORT}\n"),
    "names": ("a.py", "nobody = behind = 1\n"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_shown_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = FAULTS[name]
    file = expected.partition(":")[0]
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(text)
    assert main([file]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(expected)


@pytest.mark.parametrize("name", PASSES)
def test_code_and_short_sentences_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = PASSES[name]
    (tmp_path / file).write_text(text)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
