"""Every way verax can refuse, in one tree; each error is one sentence with a remedy.

    VeraxError                exit_code 2, status 400
    ├── InputError            status 422   a file or an array is not what it should be
    │   ├── ModelError        status 422   a model that cannot be run, or whose answers are none
    │   └── UnscoredError     status 422   nobody has said enough to be scored beside anybody
    ├── OptionError           status 400   options that do not go together
    ├── LedgerError           status 503   the ledger refuses, or its database cannot be used
    │   ├── ConflictError     status 409   the same key with other content, or a step out of turn
    │   └── NotFoundError     status 404   no such round, agent or entry
    ├── AccessError           status 403   who asks may not do this
    │   └── IdentityError     status 401   nobody knows who asks
    ├── LimitError            status 429   too much at a time
    └── ExtraMissing          status 501   an optional package is not installed

`exit_code` is what the command line exits with, `status` what an HTTP service answers.
"""

from __future__ import annotations

from numbers import Real


class VeraxError(Exception):
    """Something the user can put right.

    >>> VeraxError("no such thing; name another").exit_code
    2
    """

    exit_code = 2
    status = 400


class InputError(VeraxError):
    """A file or an array is not what it should be: says what was seen, where, and the remedy."""

    status = 422


class ModelError(InputError):
    """A model that cannot be run, or whose answers are none: whoever made it has to bear that, and nobody else."""


class UnscoredError(InputError):
    """Nobody has said enough to be scored beside anybody: files of different tasks, or reports that say nothing."""


class OptionError(VeraxError):
    """Options that do not go together, or a value outside its range."""


class LedgerError(VeraxError):
    """The ledger refuses, or its database cannot be used; nothing was recorded."""

    status = 503


class ConflictError(LedgerError):
    """The same key with other content, or a step that a round's state does not allow."""

    status = 409


class NotFoundError(LedgerError):
    """No round, agent or entry is called that."""

    status = 404


class AccessError(VeraxError):
    """Who asks is known, and may not do this."""

    status = 403


class IdentityError(AccessError):
    """Who asks cannot be told, or is not who it says."""

    status = 401


class LimitError(VeraxError):
    """More than anybody may ask at a time; the same later is in order."""

    status = 429


class ExtraMissing(VeraxError):  # noqa: N818
    """An optional package is needed and absent.

    >>> print(ExtraMissing("Parquet files", "parquet"))
    Parquet files need an extra: pip install 'verax[parquet]'
    """

    status = 501

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} need an extra: pip install 'verax[{extra}]'")


def is_number(value: object, low: float, high: float) -> bool:
    """Whether it is a number from one to the other; what is no number is refused like one out of range.

    >>> is_number(0.95, 0.5, 1), is_number("0.95", 0.5, 1), is_number(True, 0, 1)
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
