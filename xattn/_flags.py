"""Errors of the library in the words of the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from xattn.errors import XattnError


@contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Errors that begin with the name of an argument begin with its flag instead.

    Args:
        flags: Argument to flag, such as {"methods": "--method"}.
    """
    try:
        yield
    except XattnError as error:
        argument, colon, rest = str(error).partition(":")
        if not colon or argument not in flags:
            raise
        raise type(error)(f"{flags[argument]}:{rest}") from error
