"""The query of a URL: strict, because a misspelt filter must not be ignored."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from replica.notary.codes import Code
from replica.notary.errors import BadRequest

FIELDS_MAX = 32
_OFFSET_MAX = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,19}")


class QueryString:
    """The parameters of one request. Everything raises BadRequest with QUERY_INVALID."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        """`known`: the parameters that the call takes; `party` may be given several times, any other once."""
        try:
            pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=FIELDS_MAX)
            self._values: dict[str, list[str]] = {}
            for name, value in pairs:
                self._values.setdefault(name, []).append(value)
        except ValueError as error:
            raise _invalid(str(error)) from None
        for name, values in self._values.items():
            if name not in known:
                raise _invalid(f"there is no parameter {name[:100]!r}; this call takes {', '.join(known)}")
            if len(values) > 1 and name != "party":
                raise _invalid(f"{name} is given {len(values)} times")

    def text(self, name: str) -> str | None:
        """A text, if it was given; an empty one is refused."""
        values = self.texts(name)
        return values[0] if values else None

    def texts(self, name: str) -> list[str]:
        """All values of a parameter."""
        values = self._values.get(name, [])
        if "" in values:
            raise _invalid(f"{name} is empty")
        return values

    def number(self, name: str, default: int, low: int = 0, high: int = _OFFSET_MAX) -> int:
        """A whole number from `low` to `high`."""
        text = self.text(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise _invalid(f"{name} is a whole number from {low} to {high}")
        return int(text)

    def flag(self, name: str) -> bool:
        """`true` or `false`; false when left out."""
        text = self.text(name)
        if text not in (None, "true", "false"):
            raise _invalid(f"{name} is true or false")
        return text == "true"


def _invalid(detail: str) -> BadRequest:
    return BadRequest(detail, Code.QUERY_INVALID)
