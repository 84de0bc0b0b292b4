"""Clean up after runs that start in a test."""

import logging

__all__ = ["forget_loggers"]


def forget_loggers() -> None:
    """Undo the settings of `sparloom.log.start`."""
    root = logging.getLogger("sparloom")
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.NOTSET)
    root.propagate = True
