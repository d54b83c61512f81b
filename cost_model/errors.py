"""The one base class of errors that the user can mend by changing the input.

Every error of this package that names something given (a GPU, a head, a size, a file) derives from `BadInput`, so that a
caller such as the command line can tell "the input is wrong" from "the program is wrong" with one `except`.
"""


class BadInput(ValueError):
    """The input cannot be used. The message says what was given, what is allowed and what to do."""


class CalibrationError(BadInput):
    """The records cannot calibrate this GPU; the message says what is missing."""
