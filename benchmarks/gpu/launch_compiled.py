"""The fused launch compiled for an H100, in blocks of several shapes: ``python -m
benchmarks.gpu.launch_compiled``. It needs no GPU; the launch's time only one can tell.

The kernel is one loop over the source rows of a block, and in it one over the source columns that a
pixel is made of. From the instructions of both, and from how often they are gone through for a
photograph of 500 x 375 pixels, follows what a warp issues for a pixel of the result.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stateful_gpu_loader.transforms.batches import kernels

BLOCKS = ((4, 128), (4, 64), (4, 32), (8, 64), (8, 32), (16, 64), (16, 32))
"""Rows and columns."""
SIZE = 224
BOX = (275, 367)
"""Height and width in pixels of RandomResizedCrop's mean box in a photograph of 375 x 500."""
_WARP = 32
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Compiled:
    """What one shape of block costs."""

    rows: int
    columns: int
    registers: int
    """Of a thread."""
    once: int
    """Instructions outside the loop over rows."""
    a_row: int
    """Instructions in that loop, outside the one over columns."""
    a_tap: float
    """Instructions in the inner loop, for one source column of every pixel."""

    def instructions_a_pixel(self) -> float:
        """Issued by a warp, for a pixel of the result that is kept."""
        return (
            self.once + self._source_rows() * (self.a_row + _taps() * self.a_tap)
        ) / self._kept()

    def loads_a_pixel(self) -> float:
        """Bytes that are loaded for it, one instruction for 32 of them."""
        return self._source_rows() * _taps() * 3 * self.columns / self._kept()

    def _source_rows(self) -> float:
        """As many as the block's pixels lie apart, and as one of them reaches."""
        scale = max(1.0, BOX[0] / SIZE)
        return (self.rows + 2) * scale

    def _kept(self) -> float:
        """Pixels of a block that lie within the result, on average."""
        blocks = -(-SIZE // self.rows) * -(-SIZE // self.columns)
        return SIZE * SIZE / blocks


def compiled(rows: int, columns: int) -> Compiled:
    """The kernel for bfloat16, normalised, with antialiasing, in machine code."""
    constants = {
        "ANTIALIAS": True,
        "STEPS": "-*",
        "FIELDS": kernels.FIELDS,
        "BLOCK_ROWS": rows,
        "BLOCK_COLUMNS": columns,
    }
    kinds = {"parameters": "*i64", "coefficients": "*fp32", "out": "*bf16"}
    kinds |= dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernels.resample_kernel.arg_names}
    made = triton.compile(
        ASTSource(kernels.resample_kernel, signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 1, "enable_fp_fusion": False},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        registers = re.search(r"REG:(\d+)", _cuobjdump("-res-usage", file.name))
        code = re.findall(r"/\*[0-9a-f]{4,5}\*/ +(.*?);", _cuobjdump("-sass", file.name))
    assert registers is not None
    over_rows, over_columns = _loops(code)
    taps = sum("LDG" in line for line in code[slice(*over_columns)]) / (3 * columns / _WARP)
    inner = over_columns[1] - over_columns[0]
    outer = over_rows[1] - over_rows[0]
    return Compiled(
        rows, columns, int(registers[1]), len(code) - outer, outer - inner, inner / taps
    )


def _loops(code: list[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the loop over rows, and the longest in it, begin and end: branches that go back."""
    found = []
    for number, line in enumerate(code):
        branch = re.search(r"BRA.*?(0x[0-9a-f]+)", line)
        if branch and (start := int(branch[1], 16) // 16) < number:
            found.append((start, number + 1))
    rows = max(found, key=lambda loop: loop[1] - loop[0])
    inside = [loop for loop in found if rows[0] <= loop[0] and loop[1] <= rows[1] and loop != rows]
    return rows, max(inside, key=lambda loop: loop[1] - loop[0])


def _taps() -> float:
    return 2 * max(1.0, BOX[1] / SIZE) + 0.5


def _cuobjdump(*arguments: str) -> str:
    run = subprocess.run([_TOOLS / "cuobjdump", *arguments], capture_output=True, check=True)
    return run.stdout.decode() + run.stderr.decode()


def main() -> None:
    """One line for each shape."""
    print("rows x columns  registers  a tap  a row   once  instructions a pixel  loads a pixel")
    for rows, columns in BLOCKS:
        one = compiled(rows, columns)
        print(
            f"{rows:4d} x {columns:<7d}  {one.registers:9d}  {one.a_tap:5.1f}  {one.a_row:5d}  "
            f"{one.once:5d}  {one.instructions_a_pixel():20.2f}  {one.loads_a_pixel():13.2f}"
        )


if __name__ == "__main__":
    main()
