"""Print the history of an offline run of Weights & Biases, one row per line; a script, since it causes warnings.

Its file is a log of LevelDB behind a header of 7 bytes: blocks of 32 KiB with records of checksum, length, type (1: all
of it, 2: the first part, 3: a middle one, 4: the last) and bytes.
"""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 1 << 15, struct.Struct("<IHB")


def records(data: bytes) -> Iterator[bytes]:
    """Join the parts of every record."""
    place, whole = 7, b""
    while place + HEADER.size <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        whole += data[place: place + length]
        place += length
        if kind in (1, 4):
            yield whole
            whole = b""


def history(data: bytes) -> Iterator[dict[str, float]]:
    """Rows of what was logged."""
    for text in records(data):
        record = wandb_internal_pb2.Record.FromString(text)
        if record.WhichOneof("record_type") == "history":
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


if __name__ == "__main__":
    path, = Path(sys.argv[1]).glob("*.wandb")
    json.dump(list(history(path.read_bytes())), sys.stdout)
