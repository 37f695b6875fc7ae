"""Counts lines of code by room: ``python scripts/count_code.py [FOLDER ...]``.

Docstrings, comments and blank lines are not counted.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> int:
    """Return the number of lines that contain code.

    >>> lines_of_code('"Doc."\\n\\nx = 1  # one\\n# two\\n')
    1
    """
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NOT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - strings)


def main(folders: list[str]) -> None:
    """Print a table for each folder."""
    for folder in folders or ["stateful_gpu_loader", "tests", "benchmarks"]:
        lines: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(folder).parts
            room = parts[0] if len(parts) > 1 else "(loose)"
            lines[room] += lines_of_code(path.read_text(encoding="utf-8"))
            files[room] += 1
        for room, count in lines.most_common():
            print(f"{count:8,} lines {files[room]:4} files  {room}")
        print(f"{lines.total():8,} lines {files.total():4} files  {folder}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
