"""Every error that xattn raises on purpose.

Each names the argument, what was expected and what came. All derive from `XattnError` and from the
built-in type a caller would expect, so `except ValueError` keeps working.
"""


class XattnError(Exception):
    """Base of all errors raised by xattn."""


class ArgumentError(XattnError, ValueError):
    """An argument has the right type and a wrong value."""


class ArgumentTypeError(XattnError, TypeError):
    """An argument has the wrong type."""


class CaptureError(XattnError, ValueError):
    """Attention could not be read from the model."""


class LayoutError(XattnError, ValueError):
    """It is unknown, or not expressible, which token is what."""


class UnsupportedModelError(XattnError, ValueError):
    """The method does not apply to this kind of model."""


class MissingRuleError(XattnError, NotImplementedError):
    """Relevance reached an operation for which the rule set has no rule."""


class PrecisionWarning(UserWarning):
    """A number is finite and not to be trusted at the precision in which it was computed."""


class WeightsError(XattnError, ValueError):
    """Weights are missing, unreachable, or not the expected file."""


class MissingDependencyError(XattnError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""
