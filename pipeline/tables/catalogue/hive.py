"""A Hive metastore as the catalogue, by its Thrift interface. A table is written there as Spark writes one of Delta.

Nothing is locked: who registers at the same time finds the name taken, and looks again. A call that was done though
its answer was lost is met by the next look.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.protocol.binary import TBinaryProtocol  # the compiled one has errors of its own
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TSocket, TTransportException
from thriftpy2.transport.buffered import TBufferedTransport

from pipeline.tables.catalogue.rules import (
    Columns,
    Registration,
    Shown,
    Standing,
    arranged,
    refuse_taken,
    standing,
)
from replica.notary.codes import Code
from replica.notary.errors import CatalogueRefused, CatalogueUnavailable, ConfigError, NotaryError

_TOLD_MAX_CHARACTERS = 300
ANSWER_MAX_S = 10.0  # of one call, and of the connection
_PROVIDER, _PATH = "spark.sql.sources.provider", "path"
_DENIED = ("AccessControlException", "Permission denied", "HiveAccessControlException", "AuthorizationException")
_thrift: Any = thriftpy2.load(Path(__file__).with_name("metastore.thrift"), module_name="metastore_thrift")
_SOCKET: Any = TSocket  # these three are untyped
_TRANSPORT: Any = TBufferedTransport
_PROTOCOL: Any = TBinaryProtocol
MetaException: type[TException] = _thrift.MetaException
InvalidObjectException: type[TException] = _thrift.InvalidObjectException


@dataclass(frozen=True, slots=True)
class Hive:
    """One schema of a metastore at HOST:PORT, over TLS where its authorities are given.

    The metastore takes the caller's word for who it is: HADOOP_USER_NAME, or this process's user.
    """

    host: str
    port: int
    schema: str
    ca_file: Path | None = None

    def register(self, wanted: Sequence[Registration]) -> list[str]:
        """Register what is not; returns the full names of what was registered now, or got other columns.

        Nothing is registered where one of the names is taken. Raises CatalogueRefused, CatalogueUnavailable, and
        ConfigError for a file of authorities that cannot be used.
        """
        changed = []
        with self._connected() as call:
            found = [(table, self._find(call, table.name)) for table in wanted]
            for table, there in found:
                refuse_taken(self._full(table), table, _shown(there))
            if any(there is None for _, there in found):
                self._make_schema(call)
            for table, there in found:
                match standing(table, _shown(there)):
                    case Standing.MISSING:
                        self._create(call, table)
                    case Standing.OTHER_COLUMNS:
                        there.sd.cols = _columns(arranged(table, _shown(there)))  # all else stays as others set it
                        with self._understood(self._full(table)):
                            call.alter_table(self.schema, table.name, there)
                    case _:
                        continue
                changed.append(self._full(table))
        return changed

    def standings(self, wanted: Sequence[Registration]) -> dict[str, Standing]:
        """How each table stands, by its name; nothing is changed. Raises as `register` does."""
        with self._connected() as call:
            found = {table: self._find(call, table.name) for table in wanted}
        return {table.name: standing(table, _shown(there)) for table, there in found.items()}

    def _create(self, call: Any, table: Registration) -> None:
        with self._understood(self._full(table)):
            try:
                call.create_table(_as_spark_has_it(table, self.schema))
                return
            except _thrift.AlreadyExistsException:
                pass
        there = self._find(call, table.name)  # somebody made it meanwhile: perhaps another job of ours
        refuse_taken(self._full(table), table, _shown(there))

    def _make_schema(self, call: Any) -> None:
        with self._understood(self.schema), suppress(_thrift.AlreadyExistsException):
            try:
                call.get_database(self.schema)
            except _thrift.NoSuchObjectException:
                call.create_database(_thrift.Database(name=self.schema, description="A notary's tables", parameters={}))

    def _find(self, call: Any, name: str) -> Any:
        """The metastore's table of this name; None where there is none."""
        with self._understood(f"{self.schema}.{name}"):
            try:
                return call.get_table_req(_thrift.GetTableRequest(self.schema, name)).table
            except _thrift.NoSuchObjectException:
                return None

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with self._understood("set_ugi"), self._opened() as opened:
            protocol: Any = _PROTOCOL(_TRANSPORT(_SOCKET(sock=opened, socket_timeout=ANSWER_MAX_S * 1000)))
            client = TClient(_thrift.ThriftHiveMetastore, protocol)
            client.set_ugi(_user(), [])
            yield client

    @contextmanager
    def _opened(self) -> Iterator[socket.socket]:
        trust = None if self.ca_file is None else _trusting(self.ca_file)
        with socket.create_connection((self.host, self.port), ANSWER_MAX_S) as plain:
            if trust is None:
                yield plain
                return
            with trust.wrap_socket(plain, server_hostname=self.host) as protected:
                yield protected

    @contextmanager
    def _understood(self, what: str) -> Iterator[None]:
        where = f"{self.host}:{self.port}"
        try:
            yield
        except NotaryError:
            raise
        except ssl.SSLError as error:
            raise CatalogueUnavailable(
                f"{where}: no trusted connection, check tables.catalogue.ca_file: {error}"
            ) from None
        except OSError as error:
            raise CatalogueUnavailable(f"{where}: {error.strerror or error}") from None
        except (EOFError, TTransportException):
            raise CatalogueUnavailable(
                f"{where}: it closed the connection, as one that wants Kerberos does, which is not supported"
            ) from None
        except (TProtocolException, ValueError):
            raise CatalogueRefused(
                f"{where}: what answers is no Hive metastore; or it wants TLS, and tables.catalogue.ca_file is not set"
            ) from None
        except TException as error:
            raise refusal(f"{where}: {what}", error) from None

    def _full(self, table: Registration) -> str:
        return f"{self.schema}.{table.name}"


def refusal(what: str, error: TException) -> NotaryError:
    """Our error for what the metastore answered. Its own MetaException is also what a failing database makes."""
    told = " ".join(str(getattr(error, "message", None) or type(error).__name__).split())[:_TOLD_MAX_CHARACTERS]
    detail = f"{what}: {told}"
    if any(mark in told for mark in _DENIED):
        return CatalogueRefused(detail, Code.CATALOGUE_ACCESS_DENIED)
    if isinstance(error, MetaException | TApplicationException):
        return CatalogueUnavailable(detail)
    return CatalogueRefused(detail)


def _shown(there: Any) -> Shown | None:
    """What the metastore shows, if there is a table: a reader takes the place from `path` where there is one."""
    if there is None:
        return None
    columns = tuple((str(column.name), str(column.type)) for column in there.sd.cols)
    path = (there.sd.serdeInfo.parameters or {}).get(_PATH) or there.sd.location or ""
    return Shown(there.tableType or "", (there.parameters or {}).get(_PROVIDER, ""), path, columns)


def _as_spark_has_it(table: Registration, schema: str) -> Any:
    """A table that Spark takes for one of Delta. To other readers it has no rows: they need a connector for Delta."""
    serde = _thrift.SerDeInfo(
        serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
        parameters={_PATH: table.url, "serialization.format": "1"},
    )
    storage = _thrift.StorageDescriptor(
        cols=_columns(table.columns),
        location=table.url,
        inputFormat="org.apache.hadoop.mapred.SequenceFileInputFormat",
        outputFormat="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        compressed=False,
        numBuckets=-1,
        serdeInfo=serde,
        bucketCols=[],
        sortCols=[],
        parameters={},
    )
    return _thrift.Table(
        tableName=table.name,
        dbName=schema,
        owner=_user(),
        createTime=0,
        lastAccessTime=0,
        retention=0,
        sd=storage,
        partitionKeys=[],  # readers of Delta find the days in the table's own log
        parameters={"EXTERNAL": "TRUE", _PROVIDER: "delta"},
        tableType="EXTERNAL_TABLE",
    )


def _columns(columns: Columns) -> list[Any]:
    return [_thrift.FieldSchema(name=name, type=kind) for name, kind in columns]


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME") or getuser()


def _trusting(file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(f"tables.catalogue.ca_file: {file} has no certificates to check by: {error}") from None
