"""The file of the operators' public keys."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from replica.notary.errors import ConfigError
from replica.notary.operators import OperatorKey, read_operators

ONE = '[[operators]]\nname = "anna"\npublic_key = "{}"\n'
KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_a_person_may_have_several_keys_and_one_that_ended(tmp_path: Path) -> None:
    """Goal: a key is replaced without losing who signed before. Method: two of one name, one with its end."""
    file = tmp_path / "operators.toml"
    file.write_text(ONE.format(KEY) + "until = 2027-01-01T00:00:00Z\n" + ONE.format("00" * 32))
    ended = OperatorKey("anna", KEY, datetime(2027, 1, 1, tzinfo=UTC))
    assert read_operators(file) == [ended, OperatorKey("anna", "00" * 32)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "operators = []",
        ONE.format(KEY) * 2,
        ONE.format(KEY[1:]),
        ONE.format(KEY.upper()),
        ONE.format(KEY).replace("anna", ""),
        ONE.format(KEY).replace("anna", " anna"),
        ONE.format(KEY) + "until = 2027-01-01T00:00:00\n",
        ONE.format(KEY) + "further = 1\n",
        ONE.format(KEY) + "=",
    ],
)
def test_a_file_that_is_not_right_is_refused(text: str, tmp_path: Path) -> None:
    """Goal: nobody confirms by a mistake in a file. Method: one mistake each; and no file."""
    file = tmp_path / "operators.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="operators"):
        read_operators(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_operators(tmp_path / "none")
