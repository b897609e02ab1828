"""Literals of intervals, as tokens: their length in microseconds, and the text that Spark's windows take for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

from strandline.spark.views.tokens import Token

_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 7 * 86_400_000_000,
}
_RANGES = {
    ("DAY", "HOUR"): r"(\d+) (\d+)",
    ("DAY", "MINUTE"): r"(\d+) (\d+):(\d+)",
    ("DAY", "SECOND"): r"(\d+) (\d+):(\d+):(\d+(?:\.\d+)?)",
    ("HOUR", "MINUTE"): r"(\d+):(\d+)",
    ("HOUR", "SECOND"): r"(\d+):(\d+):(\d+(?:\.\d+)?)",
    ("MINUTE", "SECOND"): r"(\d+):(\d+(?:\.\d+)?)",
}
_FIELDS = ("DAY", "HOUR", "MINUTE", "SECOND")
# Not days: a session's gap of 1 day would be the next day's same hour, and not 24 hours.
_WRITTEN = ("HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
_PAIR = re.compile(r"\s*([+-]?[\d.]+)\s*([A-Za-z]+)")


class NoInterval(ValueError):
    """Tokens are no interval of a fixed length; the text says why."""


def microseconds(parts: Sequence[Token]) -> int:
    """Return the length of INTERVAL '1' HOUR, of any other spelling of it, or of a text. Raise NoInterval."""
    sign = 1
    if parts and parts[0].text == "-":
        sign, parts = -1, parts[1:]
    if parts and parts[0].word == "INTERVAL":
        parts = parts[1:]
        if parts and parts[0].text in ("-", "+") and len(parts) > 1:
            sign, parts = (-sign if parts[0].text == "-" else sign), parts[1:]
    elif not (len(parts) == 1 and parts[0].kind == "text"):
        raise NoInterval("it is no literal of an interval")
    if len(parts) == 1 and parts[0].kind == "text":
        return sign * _in_words(parts[0].value)
    parts = _without_precision(parts)
    if len(parts) == 4 and parts[2].word == "TO":
        return sign * _in_range(parts[0].value, _unit(parts[1]), _unit(parts[3]))
    if not parts or len(parts) % 2:
        raise NoInterval("it is no literal of an interval")
    return sign * sum(_amount(number.value, _unit(unit)) for number, unit in zip(parts[::2], parts[1::2], strict=True))


def duration(length: int) -> str:
    """Return a length in microseconds as Spark's windows take it; equal lengths are equal texts."""
    unit = next(each for each in _WRITTEN if length % _UNITS[each] == 0)
    number = length // _UNITS[unit]
    return f"{number} {unit.lower()}{'' if number == 1 else 's'}"


def seconds(length: int) -> str:
    """Return a length in microseconds as an interval to add to a timestamp."""
    return f"INTERVAL '{Decimal(length) / 1_000_000:f}' SECOND"


def _in_words(text: str) -> int:
    text = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    total, at = 0, 0
    while match := _PAIR.match(text, at):
        total, at = total + _amount(match[1], _named(match[2])), match.end()
    if text[at:].strip() or not at:
        raise NoInterval("it is not a number and a unit, as in '10 minutes'")
    return total


def _in_range(text: str, first: str, last: str) -> int:
    pattern = _RANGES.get((first, last))
    match = pattern and re.fullmatch(rf"\s*([+-]?){pattern}\s*", text)
    if not match:
        raise NoInterval(f"it has not the form of {first} TO {last}")
    fields = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    total = sum(_amount(number, unit) for number, unit in zip(match.groups()[1:], fields, strict=True))
    return -total if match[1] == "-" else total


def _amount(number: str, unit: str) -> int:
    try:
        amount = Decimal(number.strip()) * _UNITS[unit]
    except InvalidOperation:
        raise NoInterval(f"'{number}' is no number") from None
    if amount != amount.to_integral_value() or ("." in number and unit != "SECOND"):
        raise NoInterval(f"{number} {unit.lower()}s are not a whole number of them")
    return int(amount)


def _unit(token: Token) -> str:
    return _named(token.text)


def _named(text: str) -> str:
    unit = text.upper().removesuffix("S")
    if unit in ("MONTH", "QUARTER", "YEAR", "DECADE", "CENTURY"):
        raise NoInterval(f"a {unit.lower()} has no fixed length")
    if unit not in _UNITS:
        raise NoInterval(f"'{text}' is no unit of time")
    return unit


def _without_precision(parts: Sequence[Token]) -> Sequence[Token]:
    """Leave out the (3) of SECOND(3)."""
    rest, at = [], 0
    while at < len(parts):
        if parts[at].text == "(" and [each.kind for each in parts[at : at + 3]] == ["sign", "number", "sign"]:
            at += 3
        else:
            rest.append(parts[at])
            at += 1
    return rest
