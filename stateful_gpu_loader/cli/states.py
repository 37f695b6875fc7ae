"""PATH and --where: the arguments that name the states which a command reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StatesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A file or folder: of torch.save, Lightning, Accelerate, transformers, torchtitan or "
        "another that saves with torch.distributed.checkpoint, of this package, or JSON.",
    ),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="KEYS",
        help="Only the state at this place, where there are several: the keys that lead to it, "
        "joined by dots, as inspect shows them behind the file's name. Example: loaders.train",
    ),
]
