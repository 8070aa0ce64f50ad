"""The local folder that a report is made in, and the place that it is brought to: a file at a time, the page last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipeline.places.open import open_store
from pipeline.places.store import Store, again, fetch
from pipeline.reports.page import PAGE
from pipeline.reports.state import NAME as STATE
from replica.notary.errors import PlaceAccessDenied
from replica.notary.places import Place

_LAST = ("_SUCCESS", PAGE)  # Spark's mark of a whole table; then what people open


@contextmanager
def report_folder(place: Place, work: Path, *, going_on: bool = False) -> Iterator[Path]:
    """The local folder to make a report in. It is the place itself, or one in `work`, whose files are in the place
    when the context ends without an error.

    There, too, files of an earlier report are replaced, and further ones stay, but for those of a table that is a
    folder. `going_on`: the state of the report before is in the folder. Raises ConfigError, PlaceUnavailable and
    PlaceAccessDenied, before the report is made where the place does not answer at all.
    """
    if isinstance(place, Path):
        yield place.absolute()
        return
    store, folder = open_store(place), work / "report"
    folder.mkdir()
    known = again(lambda: store.names(""), time.sleep)
    if going_on and STATE in known:
        fetch(store, STATE, folder / STATE, time.sleep)
    yield folder
    publish(folder, store, time.sleep)


def publish(folder: Path, store: Store, sleep: Callable[[float], None]) -> None:
    """Bring a report's files into a store. Raises PlaceAccessDenied where files of an earlier one cannot be removed,
    and PlaceUnavailable; whoever repeats it completes it.
    """
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    shown = [name for name in names if not name.rpartition("/")[2].startswith(".")]  # the others are checksums
    for table in sorted({name.partition("/")[0] for name in shown if "/" in name}):
        for name in again(partial(store.names, f"{table}/"), sleep):  # else its rows would be counted in the new table
            if not again(partial(store.remove, name), sleep):
                raise PlaceAccessDenied(f"{name} is of an earlier report and may not be removed: name another place")
    for name in sorted(shown, key=_turn):
        again(partial(store.replace, name, folder / name), sleep)


def _turn(name: str) -> tuple[int, str]:
    file = name.rpartition("/")[2]
    return (_LAST.index(file) + 1 if file in _LAST else 0, name)
