"""The class of our errors for each error of the driver, chosen by its ORA- number."""

from __future__ import annotations

import oracledb

from replica.notary.errors import InvariantBroken, NotaryError, StoreMismatch, StoreUnavailable

_NOT_OUR_SCHEMA = {
    904,  # invalid identifier
    942,  # table or view does not exist
    1031,  # insufficient privileges
}
_TAKES_NO_WRITES = {
    54,  # resource busy
    60,  # deadlock detected; the transaction is rolled back here
    257,  # the archiver is stuck
    1536,  # space quota exceeded
    1653, 1654, 1688, 1691,  # a table, index, partition or LOB cannot be extended
    4021,  # timeout while waiting to lock an object, during a patch for example
    16000,  # database open for read-only access
    30006,  # resource busy, wait timeout
}  # fmt: skip


def error_number(error: oracledb.Error) -> int:
    """The number of an ORA- error, 0 for one of the driver's own."""
    return int(getattr(error.args[0], "code", 0)) if error.args else 0


def translate(name: str, error: oracledb.Error) -> NotaryError | InvariantBroken:
    """Our error for a database error in place of rows: nothing was written."""
    detail = f"{name}: {str(error).strip()}"
    number = error_number(error)
    if number in _NOT_OUR_SCHEMA:
        return StoreMismatch(f"{detail}; run `notary store migrate`, and give the rights of sql/oracle/roles.sql")
    if number in _TAKES_NO_WRITES or isinstance(error, oracledb.OperationalError) or error.args[0].isrecoverable:
        return StoreUnavailable(detail)
    return InvariantBroken(detail)
