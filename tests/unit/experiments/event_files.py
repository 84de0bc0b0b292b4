"""Print the scalars in the event files under a folder: {subfolder: {name: values}} (a script: it causes warnings)."""

import json
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

found = {}
for path in Path(sys.argv[1]).rglob("events.out.tfevents.*"):
    events = EventAccumulator(str(path))
    events.Reload()
    folder = found.setdefault(path.parent.relative_to(sys.argv[1]).as_posix(), {})
    for name in events.Tags()["scalars"]:
        folder.setdefault(name, []).extend(event.value for event in events.Scalars(name))
json.dump(found, sys.stdout)
