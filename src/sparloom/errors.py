"""The exceptions to which a caller can react; everything else is a plain ValueError or TypeError."""

__all__ = [
    "CompileError", "IllegalSchedule", "MissingArtifact", "NotDecided", "SchemaError", "SparloomError", "Unfusable",
    "Unsupported",
]


class SparloomError(Exception):
    """Base of the types below: a message for the user, without a stack trace."""


class Unsupported(SparloomError):
    """A platform cannot run this operation or configuration."""


class Unfusable(Unsupported):
    """Tile fusion cannot take a function; the message names file, line and what stands there."""


class IllegalSchedule(SparloomError):
    """A configuration breaks a dependence or a limit of its space; the message says which."""


class NotDecided(SparloomError):
    """A decision was to be replayed, and none is kept for these operands on this machine."""


class CompileError(SparloomError):
    """A compiler refused a source text.

    Args:
        source: the text that was compiled.
        log: what the compiler printed.
    """

    def __init__(self, message: str, *, source: str, log: str) -> None:
        super().__init__(message)
        self.source = source
        self.log = log


class SchemaError(SparloomError):
    """A table or checkpoint does not have the form, space or version that its reader expects."""


class MissingArtifact(SparloomError):
    """Something a task needs has not been made yet.

    Args:
        experiment: name of the experiment that makes it.
        overrides: further overrides for that experiment, such as "op=sddmm".
    """

    def __init__(self, message: str, *, experiment: str, overrides: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.experiment = experiment
        self.overrides = overrides
