"""Amounts: what people write in major units, as integers of the minor unit. No score and no rule is known here.

Arithmetic is exact, so that every machine comes to the same amount, and never on a float that someone gave.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral

from verax.errors import OptionError

MOST_DIGITS = 40
MOST_PLACES = 18

Number = str | int | float | Decimal | Fraction

_NO_MINOR_UNIT = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_THOUSANDTHS = "BHD IQD JOD KWD LYD OMR TND"


def scale_of(currency: str, scale: int | None = None) -> int:
    """The digits of the minor unit: as asked, or the currency's own.

    A code has 3 to 12 capital letters or digits, for a token's is longer than a currency's.

    >>> scale_of("EUR"), scale_of("JPY"), scale_of("KWD"), scale_of("ETH", 18)
    (2, 0, 3, 18)
    """
    if not re.fullmatch(r"[A-Z][A-Z0-9]{2,11}", str(currency)):
        raise OptionError(f"currency is {currency!r}; give a code of 3 to 12 capital letters or digits, such as EUR")
    if scale is None:
        return 0 if currency in _NO_MINOR_UNIT.split() else 3 if currency in _THOUSANDTHS.split() else 2
    if not is_whole(scale) or scale > MOST_PLACES:
        raise OptionError(f"scale is {scale!r}; give the digits of the minor unit, 0 to {MOST_PLACES}: 2 for cents")
    return scale


def minor_units(amount: str | int | Decimal, scale: int, currency: str, what: str = "budget") -> int:
    """An amount of major units, as it is written, in minor units; `what` it is goes into the refusals.

    >>> minor_units("43.10", 2, "EUR")
    4310
    """
    if isinstance(amount, float):
        raise OptionError(f"the {what} is the float {amount!r}, which cannot hold cents exactly; write it as text")
    number = _decimal_of(amount, what)
    if int(number.as_tuple().exponent) < -scale:
        raise OptionError(
            f"the {what} is {amount}; {currency} has {scale} digits after the point here: drop the others"
        )
    return int(Fraction(number) * 10**scale)


def major_text(amount: int, scale: int) -> str:
    """An amount of minor units as people write it, in major units.

    >>> major_text(4310, 2), major_text(4310, 0), major_text(-5, 2)
    ('43.10', '4310', '-0.05')
    """
    major, minor = divmod(abs(amount), 10**scale)
    return f"{'-' * (amount < 0)}{major}" + (f".{minor:0{scale}}" if scale else "")


def exact(number: Number, what: str) -> Fraction:
    """A number as it is written: 0.1 is one tenth, not the float nearest to it.

    >>> exact(0.1, "rate") == exact("1/10", "rate")
    True
    """
    if isinstance(number, Fraction):
        return number
    if isinstance(number, float):
        return Fraction(_decimal_of(str(number), what))
    above, slash, below = number.partition("/") if isinstance(number, str) else (number, "", "")
    under = Fraction(_decimal_of(below, what)) if slash else Fraction(1)
    if not under:
        raise OptionError(f"{what} is {number}, a division by 0; give a number such as 0.5")
    return Fraction(_decimal_of(above, what)) / under


def is_whole(*numbers: object) -> bool:
    """Whether all are integers, 0 or more.

    >>> is_whole(3, 0), is_whole(True), is_whole(3.0)
    (True, False, False)
    """
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)


def is_finite(*numbers: object) -> bool:
    """Whether all are numbers to calculate with.

    >>> is_finite(0.5, 2), is_finite(float("nan")), is_finite(True)
    (True, False, False)
    """
    return all(isinstance(n, int | float) and not isinstance(n, bool) and -1e300 < n < 1e300 for n in numbers)


def _decimal_of(number: str | int | Decimal, what: str) -> Decimal:
    """A number as it is written; the bound on digits keeps 1e999999999 from filling the memory."""
    if isinstance(number, bool) or not isinstance(number, str | Integral | Decimal):
        raise OptionError(f"the {what} is {number!r}, not a number; give one such as 0.50")
    try:
        found = Decimal(int(number) if isinstance(number, Integral) else number)
    except InvalidOperation:
        raise OptionError(f"the {what} is {number!r}, not a number; give one such as 0.50, with a point") from None
    if not found.is_finite():
        raise OptionError(f"the {what} is {number}, not a finite number; give one such as 0.50")
    if found.adjusted() > MOST_DIGITS or int(found.as_tuple().exponent) < -MOST_DIGITS:
        raise OptionError(f"the {what} has more than {MOST_DIGITS} digits; give a smaller number, or a shorter one")
    return found
