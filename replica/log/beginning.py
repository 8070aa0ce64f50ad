"""How a log begins: with a genesis, which is written when the log is made, and by nobody who serves."""

from __future__ import annotations

from collections.abc import Collection

from replica.log.interface import RequestLog
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable
from replica.notary.genesis import GenesisRecord, decode_genesis, encode_genesis, new_genesis

_READ_MAX_S = 10.0  # of one record: the reader may have to connect first
_WRITE_MAX_S = 30.0  # until the genesis can be read


class LogWithoutGenesis(LogRefused):
    """The log's first record is no genesis, or there is none: it is no ledger, and nobody may write to it."""

    default_code = Code.LOG_WITHOUT_GENESIS


async def genesis_of(log: RequestLog) -> GenesisRecord:
    """The genesis of a log. Raises LogWithoutGenesis, LogRefused where the first record is gone, and LogUnavailable."""
    if await log.agreed_end_offset() == 0:
        raise LogWithoutGenesis("the log is empty")
    return await _first_record(log, _READ_MAX_S)


async def begin_log(log: RequestLog, officers: Collection[bytes]) -> GenesisRecord:
    """The genesis of a log, which is written now if the log is empty, with these first officers' public keys.

    Of two that begin a log at once, the first record counts, for both. Raises as `genesis_of`. `RequestLog.check` comes
    before it.
    """
    if await log.agreed_end_offset():
        return await genesis_of(log)
    writer = await log.open_writer()
    try:
        writer.append(encode_genesis(new_genesis(officers)))
        return await _first_record(log, _WRITE_MAX_S)
    finally:
        await writer.close()


async def _first_record(log: RequestLog, wait_s: float) -> GenesisRecord:
    reader = await log.open_reader(0)
    try:
        records = await reader.read(1, wait_s)
    finally:
        await reader.close()
    if not records:
        raise LogUnavailable(f"the log's first record was not read within {wait_s:g} s")
    if (genesis := decode_genesis(records[0][1])) is None:
        raise LogWithoutGenesis("the log's first record is another one")
    return genesis
