"""The entries of a MatrixMarket text: whether all tokens are numbers, and how the parser gets them.

fast_matrix_market reads the beginning of "1e5.5", "1.5-2" and "1 1.5 3" without a word, and reads past the end of a
text whose last line lacks its line end. So every token is checked before, by passes over bytes and without a loop over
lines: pairs of neighbouring bytes become events (a token starts, a point follows a digit, a line ends ...), and pairs
of neighbouring events tell whether points and exponents are in their places.
"""

import re
from collections.abc import Iterator

import numpy as np

__all__ = [
    "BLANKS", "MarketStream", "count_tokens", "entry_line", "line_begin", "lines_of", "odd_line", "vanishing_line",
    "words_of",
]

PIECE = 1 << 18  # bytes that are looked at together: they stay in the cache
BLANKS = b" \t\r"
PLUS = re.compile(rb"(?<![eE])\+")
VANISHING = re.compile(rb"[eE]-0*+(?:[3-9]\d\d|[1-9]\d{3,})|(?<!0)0{20,}+[1-9]")  # all that may be below 5e-324

BLANK, LINE, DIGIT, SIGN, POINT, EXPONENT, OTHER = range(7)  # classes of bytes
START, START_POINT, POINT_AFTER_DIGIT, POINT_AFTER_SIGN, EXP, POINT_EXP, POINT_BLANK, POINT_LINE, END, WRONG = range(
    1, 11)  # events


def count_tokens(text: bytes, start: int, *, real: bool) -> tuple[int, int | None]:
    """Count the numbers from `start` on, up to something else.

    Args:
        real: the last number of every line may have a point and an exponent, [+-](D+ [. D*] | . D+) [(e|E) [+-] D+];
            others are integers [+-] D+.

    Returns:
        How many; and where to look for what is no number, at most `PIECE` before it, or None.
    """
    tokens, last = 0, bytes((END,))
    for offset, events in _events(text, start, real=real):
        if _pairs(last + events, shift=4).translate(None, _ALLOWED):
            return tokens, max(start, offset - 1)
        tokens += events.count(START) + events.count(START_POINT)
        last = events[-1:] or last
    return tokens, None


def odd_line(text: bytes, start: int, *, real: bool, tokens: int) -> int | None:
    """Find a line with another number of tokens, none excepted; returns how many lines are before it."""
    before = 0
    for counts in _line_counts(text, start, real=real):
        odd = np.flatnonzero((counts != 0) & (counts != tokens))
        if odd.size:
            return before + int(odd[0])
        before += counts.size
    return None


def entry_line(text: bytes, start: int, *, real: bool, entry: int) -> int:
    """Find the line of an entry: empty lines are legal, so they are counted; returns how many lines are before it."""
    before = 0
    for counts in _line_counts(text, start, real=real):
        filled = np.flatnonzero(counts)
        if filled.size > entry:
            return before + int(filled[entry])
        before, entry = before + counts.size, entry - filled.size
    raise AssertionError("the text has no such entry")


def line_begin(text: bytes, start: int, lines: int) -> int:
    """Find where the line begins that has so many lines before it."""
    while (passed := text.count(b"\n", start, start + PIECE)) < lines:
        start, lines = start + PIECE, lines - passed
    for _ in range(lines):
        start = text.index(b"\n", start) + 1
    return start


class MarketStream:
    """The source that fast_matrix_market reads: a header, then checked entries in the spelling that it knows.

    Signs "+" in front of numbers, tabs and carriage returns become blanks, and the last line gets an end.
    """

    def __init__(self, header: bytes, text: bytes, start: int) -> None:
        self._pieces = self._spelled(header, text, start)

    def read(self, _: int) -> bytes:
        """Give the next piece, of any size; nothing at the end."""
        return next(self._pieces, b"")

    @staticmethod
    def _spelled(header: bytes, text: bytes, start: int) -> Iterator[bytes]:
        yield header
        while start < len(text):
            end = text.find(b"\n", start + PIECE) + 1 or len(text)
            piece = text[start:end]
            if b"+" in piece:
                piece = PLUS.sub(b" ", piece)
            if b"\t" in piece or b"\r" in piece:
                piece = piece.translate(_SPACES)
            yield piece
            start = end
        yield b"\n"


def lines_of(text: bytes, start: int) -> Iterator[bytes]:
    """Go through the lines from `start` on, without their ends."""
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def words_of(line: bytes) -> list[bytes]:
    """Split a line at blanks, tabs and carriage returns, and at nothing else."""
    return [word for word in line.translate(_SPACES).split(b" ") if word]


def vanishing_line(text: bytes, start: int) -> tuple[int, bytes] | None:
    """Find a number that is not 0 and too small for float64: the lines between `start` and its own, and the number."""
    for match in VANISHING.finditer(text, start):
        begin, end = text.rfind(b"\n", start, match.start()) + 1 or start, text.find(b"\n", match.start())
        word = words_of(text[begin : end if end >= 0 else len(text)])[-1]
        if word.lower().partition(b"e")[0].strip(b"+-0.") and float(word) == 0:
            return text.count(b"\n", start, begin), word
    return None


def _events(text: bytes, start: int, *, real: bool) -> Iterator[tuple[int, bytes]]:
    """Give the events of every piece of a text, and where the piece begins; the last line needs no end."""
    table, dropped = _REAL if real else _INTEGER
    last = bytes((LINE,))
    for offset in range(start, len(text) + 1, PIECE):
        classes = text[offset : offset + PIECE].translate(_CLASS_OF)
        if offset + PIECE > len(text):
            classes += bytes((LINE,))
        yield offset, _pairs(last + classes, shift=3).translate(table, dropped)
        last = classes[-1:]


def _line_counts(text: bytes, start: int, *, real: bool) -> Iterator[np.ndarray]:
    """Count the tokens of every line, lines by lines, of a text whose tokens are right."""
    carried = 0  # tokens of the line that goes on in the next piece
    for _, found in _events(text, start, real=real):
        events = np.frombuffer(found, np.uint8)
        starts = np.cumsum((events == START) | (events == START_POINT)) + carried
        ends = starts[(events == END) | (events == POINT_LINE)]
        carried = int(starts[-1] if starts.size else carried) - int(ends[-1] if ends.size else 0)
        yield np.diff(ends, prepend=0)


def _pairs(codes: bytes, *, shift: int) -> bytes:
    """Join every code with its successor into one byte."""
    numbers = np.frombuffer(codes, np.uint8)
    return ((numbers[:-1] << shift) | numbers[1:]).tobytes()


def _classes() -> bytes:
    table = bytearray([OTHER]) * 256
    for code, members in (
        (BLANK, BLANKS), (LINE, b"\n"), (DIGIT, b"0123456789"), (SIGN, b"+-"), (POINT, b"."), (EXPONENT, b"eE"),
    ):
        for member in members:
            table[member] = code
    return bytes(table)


def _event_table(*, real: bool) -> tuple[bytes, bytes]:
    """Make the table from pairs of classes to events, and list the pairs that are none."""
    table = bytearray([WRONG]) * 256
    found = {
        (BLANK, DIGIT): START, (LINE, DIGIT): START, (BLANK, SIGN): START, (LINE, SIGN): START,
        (DIGIT, LINE): END, (BLANK, LINE): END, (LINE, LINE): END,
    }
    nothing = [(BLANK, BLANK), (LINE, BLANK), (DIGIT, BLANK), (DIGIT, DIGIT), (SIGN, DIGIT)]
    if real:
        found |= {
            (BLANK, POINT): START_POINT, (LINE, POINT): START_POINT, (DIGIT, POINT): POINT_AFTER_DIGIT,
            (SIGN, POINT): POINT_AFTER_SIGN, (DIGIT, EXPONENT): EXP, (POINT, EXPONENT): POINT_EXP,
            (POINT, BLANK): POINT_BLANK, (POINT, LINE): POINT_LINE,
        }
        nothing += [(POINT, DIGIT), (EXPONENT, DIGIT), (EXPONENT, SIGN)]
    for (first, second), event in found.items():
        table[first << 3 | second] = event
    return bytes(table), bytes(first << 3 | second for first, second in nothing)


def _allowed() -> bytes:
    """List the events that may follow each other.

    A point needs a digit beside it, an exponent comes after the point, either once, and only in the last token of a
    line: no token starts between them and the end of the line.
    """
    follow = {
        START: (START, START_POINT, POINT_AFTER_DIGIT, POINT_AFTER_SIGN, EXP, END),
        START_POINT: (EXP, END),
        POINT_AFTER_DIGIT: (EXP, POINT_EXP, POINT_BLANK, POINT_LINE, END),
        POINT_AFTER_SIGN: (EXP, END),
        EXP: (END,),
        POINT_EXP: (END,),
        POINT_BLANK: (END,),
        POINT_LINE: (START, START_POINT, END),
        END: (START, START_POINT, END),
    }
    return bytes(first << 4 | second for first, seconds in follow.items() for second in seconds)


_CLASS_OF = _classes()
_REAL, _INTEGER = _event_table(real=True), _event_table(real=False)
_ALLOWED = _allowed()
_SPACES = bytes.maketrans(b"\t\r", b"  ")
