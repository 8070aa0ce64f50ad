"""Tables in a catalogue: what is done about what it shows, what its answers mean, and that it never holds a job up."""

from __future__ import annotations

import json
from pathlib import Path
from queue import Empty

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from thriftpy2.thrift import TApplicationException, TException

from pipeline.tables.catalogue.hive import Hive, InvalidObjectException, MetaException, refusal
from pipeline.tables.catalogue.keeping import Changes, keep_registered
from pipeline.tables.catalogue.rules import (
    Registration,
    Shown,
    Standing,
    arranged,
    refuse_taken,
    registrations,
    standing,
    type_text,
    url_of,
)
from pipeline.tables.rows import COMPLETIONS, EPOCHS, SCHEMAS
from replica.notary.codes import Code, Retry
from replica.notary.errors import CatalogueRefused, CatalogueUnavailable, NotaryError
from replica.notary.places import Place, Remote
from tests.unit.cli.test_what_people_see import answering

BUCKET = Remote("s3a://lake/notary")


def schemas(*names: str) -> dict[str, str]:
    """Delta's JSON of these tables' columns."""
    return {name: Schema.from_arrow(SCHEMAS[name]).to_json() for name in names}


def wanted(folder: Place = BUCKET) -> Registration:
    (epochs,) = registrations(folder, schemas(EPOCHS))
    return epochs


def shown(**changes: object) -> Shown:
    """What a catalogue shows of the table `epochs` once it is registered, with changes."""
    columns = (
        ("log_offset", "bigint"),
        ("day", "date"),
        ("began_at", "timestamp"),
        ("epoch", "bigint"),
        ("replica", "string"),
    )
    facts = {
        "kind": "EXTERNAL_TABLE",
        "format": "delta",
        "url": "s3a://lake/notary/epochs",
        "columns": columns,
    } | changes
    return Shown(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "stands"),
    [
        (None, Standing.MISSING),
        (shown(), Standing.REGISTERED),
        (shown(url="s3://lake/notary/epochs/", format="DELTA"), Standing.REGISTERED),
        (shown(columns=tuple((name.upper(), kind.upper()) for name, kind in shown().columns)), Standing.REGISTERED),
        (shown(columns=shown().columns[::-1]), Standing.REGISTERED),
        (shown(columns=shown().columns[:-1]), Standing.OTHER_COLUMNS),
        (shown(columns=(*shown().columns[:-1], ("replica", "binary"))), Standing.OTHER_COLUMNS),
        (shown(columns=()), Standing.OTHER_COLUMNS),
        (shown(url="s3://lake/other/epochs"), Standing.TAKEN),
        (shown(url="s3://other/notary/epochs"), Standing.TAKEN),
        (shown(url="file:///notary/epochs"), Standing.TAKEN),
        (shown(url=""), Standing.TAKEN),
        (shown(kind="MANAGED_TABLE"), Standing.TAKEN),
        (shown(kind="VIRTUAL_VIEW", format="", url=""), Standing.TAKEN),
        (shown(format="parquet"), Standing.TAKEN),
    ],
)
def test_how_a_table_stands(found: Shown | None, stands: Standing) -> None:
    """Goal: what is ours is known however it is written, and what is another's is never taken for ours. Method: what a
    catalogue may show under the name."""
    assert standing(wanted(), found) is stands
    if stands is Standing.TAKEN:
        with pytest.raises(CatalogueRefused, match="not the table at s3a://lake/notary/epochs"):
            refuse_taken("notary.epochs", wanted(), found)
    else:
        refuse_taken("notary.epochs", wanted(), found)


def test_columns_that_are_shown_keep_their_places() -> None:
    """Goal: a new column is no change of another's type, which a catalogue refuses. Method: a column of ours comes in
    the middle, while a user's was the last."""
    assert [name for name, _ in arranged(wanted(), shown(columns=shown().columns[::2]))] == [
        *("log_offset", "began_at", "replica"),
        *("day", "epoch"),
    ]
    assert arranged(wanted(), None) == wanted().columns


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (BUCKET, "s3a://lake/notary"),
        (Remote("s3://lake/notary"), "s3a://lake/notary"),
        (Remote("abfss://c@account.dfs.core.windows.net/p"), "abfss://c@account.dfs.core.windows.net/p"),
        (Path("/var/lib/my tables"), "file:///var/lib/my tables"),
    ],
)
def test_places_are_written_as_catalogues_do(place: Place, url: str) -> None:
    """Goal: a reader opens what we wrote. Method: a place of each kind; a folder is known in its other form, too."""
    assert url_of(place) == url
    as_java = f"{url}/epochs".replace("file:///", "file:/")
    assert standing(wanted(place), shown(url=as_java)) is Standing.REGISTERED


def test_types_are_in_the_words_of_sql(tmp_path: Path) -> None:
    """Goal: columns of ours, and those that users add, have types that readers know. Method: a real Delta table with a
    column of each kind."""
    kinds = {
        "a": (pa.int8(), "tinyint"),
        "b": (pa.int16(), "smallint"),
        "c": (pa.int32(), "int"),
        "d": (pa.int64(), "bigint"),
        "e": (pa.float32(), "float"),
        "f": (pa.bool_(), "boolean"),
        "g": (pa.decimal128(12, 2), "decimal(12,2)"),
        "h": (pa.timestamp("us", tz="UTC"), "timestamp"),
        "i": (pa.list_(pa.string()), "array<string>"),
        "j": (pa.map_(pa.string(), pa.int64()), "map<string,bigint>"),
        "k": (pa.struct([("x", pa.list_(pa.int64())), ("y", pa.date32())]), "struct<x:array<bigint>,y:date>"),
    }
    table = DeltaTable.create(str(tmp_path), pa.schema([(name, kind) for name, (kind, _) in kinds.items()]))
    fields = json.loads(table.schema().to_json())["fields"]
    assert {field["name"]: type_text(field["type"]) for field in fields} == {
        name: text for name, (_, text) in kinds.items()
    }


@pytest.mark.parametrize(
    ("answer", "text", "code"),
    [
        (
            MetaException,
            "java.security.AccessControlException: Permission denied: user=nobody",
            Code.CATALOGUE_ACCESS_DENIED,
        ),
        (MetaException, "javax.jdo.JDODataStoreException: the database is away", Code.CATALOGUE_UNAVAILABLE),
        (TApplicationException, "Internal error processing create_table", Code.CATALOGUE_UNAVAILABLE),
        (InvalidObjectException, "Invalid column type: variant", Code.CATALOGUE_REFUSED),
    ],
)
def test_an_answer_that_refuses_has_a_code(answer: type[TException], text: str, code: Code) -> None:
    """Goal: one knows whether to wait or to change something. Method: each kind of answer."""
    error = refusal("meta:9083: notary.epochs", answer(message=f"{text}\n"))
    assert (error.code, error.detail) == (code, f"meta:9083: notary.epochs: {text}")
    assert (error.code.retry is Retry.SAME) == (code is Code.CATALOGUE_UNAVAILABLE)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.CATALOGUE_REFUSED),
        (b"\x15\x03\x01\x00\x02\x02P", Code.CATALOGUE_REFUSED),  # an alert of TLS
        (b"\xff" * 40, Code.CATALOGUE_REFUSED),
        (b"", Code.CATALOGUE_UNAVAILABLE),
        (b"\x80\x01\x00\x02\x00\x00\x00\x07set_ugi", Code.CATALOGUE_UNAVAILABLE),  # an answer that breaks off
    ],
)
def test_another_program_at_the_port(raw: bytes, code: Code) -> None:
    """Goal: no traceback, and one sees that it is another program. Method: what programs say to a stranger."""
    with answering(raw) as port, pytest.raises(NotaryError) as met:
        Hive("127.0.0.1", port, "notary").register([])
    assert met.value.code is code


class Over(Exception):
    """The test's story is told."""


def test_it_is_tried_again_after_every_error_and_looked_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no error of a catalogue ends the job, one that needs a person included, and a dropped registration comes
    back. Method: errors and successes in turn; note each wait."""
    plan: list[NotaryError | None] = [
        CatalogueUnavailable("away"),
        CatalogueRefused("wrong token", Code.CATALOGUE_ACCESS_DENIED),
        NotaryError("no such file", Code.KEY_UNSAFE),
        None,
        CatalogueUnavailable("away"),
        None,
    ]
    waits_s: list[float] = []
    failures: list[tuple[str, float]] = []
    changes = Changes(BUCKET)
    changes.tell(schemas(EPOCHS))

    def register(tables: list[Registration]) -> None:
        assert tables == [wanted()]
        if not plan:
            raise Over
        if error := plan.pop(0):
            raise error

    class Waited:
        """The queue, of which nobody waits for the end."""

        def get(self, timeout: float | None = None) -> list[Registration]:
            if timeout is None:
                return [wanted()]
            waits_s.append(timeout)
            raise Empty

    changes.queue = Waited()  # type: ignore[assignment]
    with pytest.raises(Over):
        keep_registered(register, changes, 60.0, lambda error, delay_s: failures.append((error.code.name, delay_s)))
    assert waits_s == [1.0, 2.0, 4.0, 60.0, 1.0, 60.0]
    assert failures == [
        ("CATALOGUE_UNAVAILABLE", 1.0),
        ("CATALOGUE_ACCESS_DENIED", 2.0),
        ("KEY_UNSAFE", 4.0),
        ("CATALOGUE_UNAVAILABLE", 1.0),
    ]


def test_a_new_column_is_registered_at_once() -> None:
    """Goal: the catalogue follows the tables' columns, and is not asked after every append. Method: the same columns
    twice, then one more, while nobody would look again for an hour."""
    changes = Changes(BUCKET)
    seen: list[list[str]] = []
    for _ in range(2):
        changes.tell(schemas(EPOCHS))

    def register(tables: list[Registration]) -> None:
        seen.append([table.name for table in tables])
        if len(seen) == 2:
            raise Over
        changes.tell(schemas(EPOCHS))
        changes.tell(schemas(EPOCHS, COMPLETIONS))

    with pytest.raises(Over):
        keep_registered(register, changes, 3600.0, lambda error, delay_s: None)
    assert seen == [[EPOCHS], [COMPLETIONS, EPOCHS]]
