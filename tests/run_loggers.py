"""What runs that begin in a test leave behind."""

import logging

__all__ = ["forget_loggers"]


def forget_loggers() -> None:
    """Take back what `sparloom.log.start` has set."""
    root = logging.getLogger("sparloom")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.NOTSET)
    root.propagate = True
