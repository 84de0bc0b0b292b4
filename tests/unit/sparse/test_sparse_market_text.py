"""Numbers of MatrixMarket files: all valid ones are read and no others, for any piece size."""

import itertools
import random
import re

import numpy as np
import pytest

from sparloom.sparse import market
from sparloom.sparse.market import parse_market

HEADER = "%%MatrixMarket matrix coordinate real general\n"
WORDS = ["".join(letters) for length in range(1, 6) for letters in itertools.product("1.eE+-", repeat=length)]
INTEGERS = ["".join(letters) for length in range(1, 5) for letters in itertools.product("10.e+-", repeat=length)]
LIMIT = 1 << 30
TOKENS = {
    "real": re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"), "integer": re.compile(r"[+-]?\d+"),
    "unsigned-integer": re.compile(r"\+?\d+"),
}


def read(text, dtype=np.float64):
    return parse_market(text.encode("latin-1"), "m.mtx", LIMIT, dtype)


def attempt(text):
    """Give the matrix and None, or None and the message."""
    try:
        return read(text), None
    except ValueError as error:
        return None, str(error)


def number(word, kind):
    """Convert as Python does; None if it does not."""
    try:
        return kind(word)
    except ValueError:
        return None


def test_exactly_the_numbers_of_python_are_values():
    assert len(WORDS) == 9330
    expected = [number(word, float) for word in WORDS]
    read_as = []
    for word in WORDS:
        matrix, message = attempt(f"{HEADER}1 1 1\n1 1 {word}\n")
        read_as.append(None if matrix is None else matrix.values[0])
        assert message in (None, f"m.mtx: line 3: {word!r} is not a finite number"), word
    assert read_as == expected
    valid = [(word, value) for word, value in zip(WORDS, expected, strict=True) if value is not None]
    lines = "".join(f"{place} 1 {word}\n" for place, (word, _) in enumerate(valid, start=1))
    column = read(f"{HEADER}{len(valid)} 1 {len(valid)}\n{lines}")
    assert column.values.tolist() == [value for _, value in valid]
    array = read(f"%%MatrixMarket matrix array real general\n{len(valid)} 1\n" + "\n".join(word for word, _ in valid))
    assert array.values.tolist() == [value for _, value in valid]


@pytest.mark.parametrize("place", ["integer value", "row", "column", "row of a pattern", "column of a pattern"])
def test_exactly_the_integers_of_python_are_integers_and_indices(place):
    field = {"integer value": "integer", "row": "real", "column": "real"}.get(place, "pattern")
    for word in INTEGERS:
        words = [word, "7"] if place.startswith("row") else ["7", word]
        words = ["7", "7", word] if field == "integer" else [*words, "5"] if field == "real" else words
        value = number(word, int)
        matrix, message = attempt(f"{HEADER.replace('real', field)}1111 1111 1\n{' '.join(words)}\n")
        if value is None:
            wanted = "is not an integer of 64 bits" if field == "integer" else "is not an index"
            assert message == f"m.mtx: line 3: {word!r} {wanted}"
        elif field != "integer" and not 1 <= value <= 1111:
            assert re.fullmatch(r"m\.mtx: line 3: (row|column) \S+ is outside 1 to 1111", message), word
        else:
            row, col = matrix.pattern.row_ids()[0] + 1, matrix.pattern.indices[0] + 1
            assert value == (matrix.values[0] if field == "integer" else row if place.startswith("row") else col), word


@pytest.mark.parametrize("word", [
    "1_0", "nan", "inf", "-Infinity", "0x10", "1d5", "1D5", "1f", "\x0b1", "1\x0c", "\x1c1", "\x85", "\xa01", "\u00b2",
    "\x001", "1\x00", "1,5", "(1)", "%", "1/2",
])
def test_number_formats_of_other_programs_are_refused(word):
    with pytest.raises(ValueError, match=r"m\.mtx: line 3: '.*' is not a finite number"):
        read(f"{HEADER}1 1 1\n1 1 {word}\n")


@pytest.mark.parametrize("line", ["1 1.5 3", "1 1e0 3", "1.0 1 3", "1 1. 3", "1 .1 3", "1 +-1 3", "1 1- 3"])
def test_indices_with_points_or_exponents_are_refused(line):
    with pytest.raises(ValueError, match=r"m\.mtx: line 4: '.*' is not an index"):
        read(f"{HEADER}1 2 2\n1 2 2\n{line}\n")


@pytest.mark.parametrize("end", ["", " ", "\t", "\r", " \t\r ", "\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize(("banner", "size", "lines", "values"), [
    ("coordinate real general", "2 2 2", ("1 1 1.5", "2 2 2.5"), [1.5, 2.5]),
    ("coordinate integer general", "2 2 2", ("1 1 7", "2 2 -7"), [7, -7]),
    ("coordinate unsigned-integer general", "1 1 1", ("1 1 7",), [7]),
    ("coordinate pattern general", "2 2 2", ("1 1", "2 2"), [1, 1]),
    ("coordinate real symmetric", "2 2 1", ("2 1 3.",), [3, 3]),
    ("array real general", "2 1", ("1", "-2e0"), [1, -2]),
    ("array integer symmetric", "2 2", ("1", "2", "3"), [1, 2, 2, 3]),
])
def test_the_last_line_may_end_in_anything_or_nothing(end, banner, size, lines, values):
    for between in ("\n", "\r\n", " \n", "\r"):
        text = between.join([f"%%MatrixMarket matrix {banner}", size, *lines]) + end
        if between == "\r" and "\n" in end:
            continue  # two kinds of line ends in one file
        assert read(text).values.tolist() == values, repr(text)


@pytest.mark.parametrize("last", ["2.5e-", "2.5e", "2.5E+", ".", "-", "+."])
def test_a_truncated_number_is_refused(last):
    with pytest.raises(ValueError, match=r"m\.mtx: line 4: '.*' is not a finite number"):
        read(f"{HEADER}2 2 2\n1 1 2.5e-07\n2 2 {last}")


@pytest.mark.parametrize("piece", [1, 2, 5, 64])
def test_texts_are_read_by_the_grammar_for_any_piece_size(piece, monkeypatch):
    monkeypatch.setattr(market, "PIECE", piece)
    rng, accepted = random.Random(piece), 0
    for _ in range(1500):
        text, expected = drawn(rng)
        matrix, message = attempt(text)
        if expected is None:
            assert re.match(r"m\.mtx: (line \d+: |the file ends after )", message), text
            continue
        pattern = matrix.pattern
        assert [*zip(pattern.row_ids() + 1, pattern.indices + 1, matrix.values, strict=True)] == expected, text
        accepted += 1
    assert accepted > 300


def drawn(rng):
    """Draw a coordinate text with few faults, and the entries that the grammar finds in it; None where it is wrong."""
    field = rng.choice(["real", "integer", "unsigned-integer", "pattern"])
    rows, cols, count = rng.randint(1, 3), rng.randint(1, 3), rng.randint(0, 3)
    values, lines = ("1", "+2", "30", "-4", ".5", "6.e-7", "-8.9E+1", "1e", "1-1"), []
    for row, col in rng.sample([(row, col) for row in range(1, 4) for col in range(1, 4)], count):
        words = [str(row), str(col), *([] if field == "pattern" else [rng.choice(values)])]
        lines.append(rng.choice([" ", "\t", "  "]).join(words[: rng.choice([3, 3, 3, 3, 3, 3, 2])]))
    body = list(rng.choice(["\n", "\r\n", " \n", "\n\n"]).join(lines) + rng.choice(["\n", "", " ", "\r"]))
    if body and rng.random() < 0.3:
        body[rng.randrange(len(body))] = rng.choice("01 .e+-\t\n%\x0b")
    text = f"%%MatrixMarket matrix coordinate {field} general\n{rows} {cols} {count}\n{''.join(body)}"
    return text, meaning("".join(body), field, (rows, cols, count))


def meaning(body, field, size):
    entries = []
    for words in (re.findall(r"[^ \t\r]+", line) for line in body.split("\n")):
        if not words:
            continue
        indices, value = words[:2], words[2:]
        if len(words) != (2 if field == "pattern" else 3) or not all(map(TOKENS["integer"].fullmatch, indices)):
            return None
        if not all(1 <= int(index) <= limit for index, limit in zip(indices, size[:2], strict=True)):
            return None
        if value and not TOKENS[field].fullmatch(value[0]):
            return None
        entries.append((*map(int, indices), float(value[0]) if value else 1.0))
    repeated = len({entry[:2] for entry in entries}) < len(entries)
    return None if repeated or len(entries) != size[2] else sorted(entries)
