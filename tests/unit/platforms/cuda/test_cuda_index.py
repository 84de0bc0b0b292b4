"""Index functions of the CUDA kernels, tested exhaustively on the host."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from sparloom.errors import Unsupported
from sparloom.jit import kernel_source
from sparloom.jit.toolchain import find_toolchain
from sparloom.platforms.cuda import MAX_COLUMNS, columns_argument

PROGRAM = Path(__file__).with_name("cuda_index.cpp")
FLAGS = ("-std=c++17", "-Og", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")
OVERFLOW = "signed integer overflow"

BROKEN = {  # what is taken out of the header -> what is put in, and what is said of it
    "return thread % lanes;": ("return thread / lanes;", "lane_of"),
    "thread & unsigned(kWarp - lanes);": ("thread & unsigned(kWarp - 1);", "lane_mask"),
    "Offset(block) * groups + group": ("int(block) * groups + group", OVERFLOW),
    "(pack * lanes + lane) * vector": ("(pack + lane) * vector", "pack_column"),
    "return lanes * vector;": ("return lanes;", "pack_stride"),
    "return group * tile_width + place;": ("return group + place;", "slot_of"),
    "? tile_width : width - origin": ("? tile_width : tile_width", "tile_columns"),
    "return row * width;": ("return int(row) * int(width);", OVERFLOW),
    "return element / width;": ("return int(element) / width;", "row_of_element"),
    "return int(element % width);": ("return int(element) % width;", "column_of_element"),
    "return int(vector % heads);": ("return int(vector / heads);", "head_of_vector"),
    "length() * (part + 1) / parts": ("length() / parts * (part + 1)", "Range::part"),
    "begin + size < count ? begin + size : count": ("begin + size", "piece_of"),
    "first + place < end ?": ("first + place <= end ?", "existing"),
    "if (indptr[middle + 1] <= n) low": ("if (indptr[middle + 1] < n) low", "row_of"),
    "while (indptr[row + 1] <= n)": ("while (indptr[row + 1] < n)", "row_from"),
    "indptr[middle + 1] < diagonal": ("indptr[middle + 1] <= diagonal", "ends_before"),
    "items.begin - row, last,": ("items.begin, last,", "began_row"),
    "return n <= indptr[row];": ("return n < indptr[row];", "began_row"),
    "n = indptr[++row];": ("++row;", "walk_of, next_row"),
    "return Range{n, stop};": ("return Range{n, last};", "walk_of, next_row"),
    "carry_rows[group - 1] != carry_rows[group]": ("carry_rows[group - 1] < 0", "begins_carry"),
    "carry_rows[next] == carry_rows[group]": ("carry_rows[next] >= 0", "ending_group"),
}


def tried(header: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile the program with a header and run it."""
    (folder / "index.cuh").write_text(header, encoding="utf-8")
    built = folder / "tried"
    command = [*find_toolchain("c++").command, *FLAGS, f"-I{folder}", str(PROGRAM), "-o", str(built)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return subprocess.run([str(built)], capture_output=True, text=True, check=False, timeout=120)


def header() -> str:
    return kernel_source("cuda/index.cuh").read_text(encoding="utf-8")


@pytest.mark.cc
def test_all_small_cases_and_the_largest_numbers_are_right(tmp_path):
    done = tried(header(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.cc
@pytest.mark.parametrize("right", [right if place % 6 == 0 else pytest.param(right, marks=pytest.mark.exhaustive)
                                   for place, right in enumerate(BROKEN)])
def test_a_wrong_function_is_reported(tmp_path, right):
    wrong, said = BROKEN[right]
    assert header().count(right) == 1
    done = tried(header().replace(right, wrong), tmp_path)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr


def test_matrices_with_more_columns_than_int32_are_refused():
    assert columns_argument(MAX_COLUMNS) == np.int32(2**31 - 1024)
    with pytest.raises(Unsupported, match=f"{MAX_COLUMNS + 1} columns, above {MAX_COLUMNS}"):
        columns_argument(MAX_COLUMNS + 1)
