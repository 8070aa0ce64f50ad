"""Notes on fields for the published specification, beyond their types."""

from __future__ import annotations

import msgspec


def described(pattern: str) -> msgspec.Meta:
    """The pattern of a text, for the specification only. Our own code checks the text, with a more precise error."""
    return msgspec.Meta(extra_json_schema={"pattern": pattern})


def refers_to(name: str) -> msgspec.Meta:
    """Which document stands in a field that is kept as raw bytes."""
    return msgspec.Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})
