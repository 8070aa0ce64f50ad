"""Stores of objects, and a manifest that is kept in one: by two archivers, and while the store fails."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from random import Random

import obstore.store
import pytest

from pipeline.archive import lines
from pipeline.archive.layout import ObjectLayout
from pipeline.archive.lines import FOLDER, ObjectLines
from pipeline.archive.manifest import Adopted, BadLine, Manifest, Opened, check_lines, open_manifest
from pipeline.places import objects
from pipeline.places.objects import ObjectsStore
from pipeline.places.store import ATTEMPTS, PAUSE_S, ObjectExists, Store, again, keep, keep_file
from replica.notary.codes import Code, Retry
from replica.notary.errors import ArchiveContended, ArchiveDamaged, ConfigError, PlaceAccessDenied, PlaceUnavailable
from tests.contracts.place_contract import PlaceContract
from tests.few import few_quick
from tests.worlds.archive_world import SIGNER
from tests.worlds.folder_store import FolderStore
from tests.worlds.stores import FaultyStore, MemoryStore

OPENED = Opened(archive_id="archive-1", topic_id="topic", at_us=1)


@pytest.fixture(autouse=True)
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed gives the same run each time."""
    monkeypatch.setattr(lines, "READ_AT_ONCE", 1)


class TestMemory(PlaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestLocked(PlaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(locked=True)


class TestFolder(PlaceContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FolderStore(tmp_path / "place")

    def test_a_killed_writer_leaves_no_file(self, tmp_path: Path) -> None:
        """Goal: a disk does not fill with halves. Method: every file of the folder, after an error and a lost race."""
        store = FolderStore(tmp_path)
        store.create("a/1", [b"one"])
        for parts in (iter([b"half", 1]), iter([b"other"])):
            with pytest.raises((ObjectExists, TypeError)):
                store.create("a/1", parts)
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["1"]


class TestObjects(PlaceContract):
    @pytest.fixture
    def store(self) -> Store:
        return ObjectsStore(obstore.store.MemoryStore())


class TestObjectsInParts(PlaceContract):
    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setattr(objects, "ONE_REQUEST_BYTES", 0)
        return ObjectsStore(obstore.store.MemoryStore())


def test_a_folder_that_may_not_be_written_is_no_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what a person must mend is not tried again. Method: every call meets a refusal of the file system."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "place")

    store = FolderStore(tmp_path)
    store.create("a/1", [b"one"])
    for name in ("read_bytes", "open", "stat", "mkdir"):
        monkeypatch.setattr(Path, name, refused)
    for call in (lambda: store.read("a/1"), lambda: store.size("a/1"), lambda: store.create("a/2", [b"two"])):
        with pytest.raises(PlaceAccessDenied) as failed:
            again(call, _never)
        assert (failed.value.code, failed.value.code.retry) == (Code.PLACE_ACCESS_DENIED, Retry.NO)


def _never(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s for a store that answers")


class Waits(list[float]):
    """Remembers how long one would have slept."""

    __call__ = list.append


def opened(store: Store, sleep: Waits) -> Manifest:
    """The manifest in a store, as an archiver opens it."""
    return open_manifest(ObjectLayout("memory", lambda: store, sleep), SIGNER, OPENED)


def adopted(number: int, writer: int = 0) -> Adopted:
    """A line that names its writer."""
    return Adopted(topic_id=f"writer-{writer}", at_us=number)


def test_a_store_that_refuses_for_a_moment_is_asked_again() -> None:
    """Goal: 503s cost time only. Method: all attempts but the last are refused; then the last one as well."""
    waits, fates = Waits(), iter([True] * (ATTEMPTS - 1) + [False] + [True] * ATTEMPTS)

    def call() -> str:
        if next(fates):
            raise PlaceUnavailable("503")
        return "done"

    assert again(call, waits) == "done"
    assert waits == [PAUSE_S * 2**number for number in range(ATTEMPTS - 1)]
    with pytest.raises(PlaceUnavailable) as failed:
        again(call, waits)
    assert (failed.value.code, failed.value.code.retry) == (Code.PLACE_UNAVAILABLE, Retry.SAME)


def test_a_lost_answer_is_not_taken_for_another_writer() -> None:
    """Goal: our own object is ours. Method: the first answer is lost, and then that to the look at what is there."""
    inner, fates = MemoryStore(), iter([0.0, 0.0, 1.0, 1.0])

    class Fates(Random):
        def random(self) -> float:
            return next(fates)

    waits = Waits()
    keep(FaultyStore(inner, Fates(), lost=0.5), "a", b"ours", waits)
    assert (inner.objects, waits) == ({"a": b"ours"}, [PAUSE_S])


def test_a_server_that_closes_the_connection_in_place_of_a_refusal_is_understood(tmp_path: Path) -> None:
    """Goal: a name that is taken is settled at once, not after all attempts. Method: a store that gives no answer
    where a name is taken, as a server does that refuses before it has read a large body; the same and other bytes."""

    class Closing(MemoryStore):
        def create(self, name: str, parts: Iterable[bytes]) -> None:
            try:
                super().create(name, parts)
            except ObjectExists:
                raise PlaceUnavailable("connection reset by peer") from None

    store, file, digest = Closing(), tmp_path / "file", sha256(b"ours").hexdigest()
    file.write_bytes(b"ours")
    for _ in range(2):
        keep(store, "a/1", b"ours", _never)
        keep_file(store, f"a/{digest}", file, digest, _never)
    for write in (lambda: keep(store, "a/1", b"other", _never), lambda: keep_file(store, "a/1", file, "other", _never)):
        with pytest.raises(ObjectExists):
            write()
    assert store.objects == {"a/1": b"ours", f"a/{digest}": b"ours"}


def test_of_two_archivers_one_appends() -> None:
    """Goal: one chain. Method: two know the same lines; the second to append is refused, and goes on when it read."""
    store, waits = MemoryStore(), Waits()
    first, second = opened(store, waits), opened(store, waits)
    first.append(SIGNER, [adopted(1, 1), adopted(2, 1)])
    for _ in range(2):
        with pytest.raises(ArchiveContended):
            second.append(SIGNER, [adopted(1, 2)])
    assert second.head != first.head
    second = opened(store, waits)
    assert second.head == first.head
    second.append(SIGNER, [adopted(3, 2)])
    with pytest.raises(ArchiveContended):
        first.append(SIGNER, [adopted(3, 1)])
    assert opened(store, waits).head == second.head
    assert len(store.objects) == 3


def test_a_store_that_overwrites_is_refused() -> None:
    """Goal: the condition is tried, not believed. Method: a store that honours it and fails; one that ignores it."""

    class Overwriting(MemoryStore):
        def create(self, name: str, parts: Iterable[bytes]) -> None:
            self.objects[name] = b"".join(parts)

    store = MemoryStore()
    opened(store, Waits())
    ObjectLines(store, Waits()).refuse_unsafe()
    ObjectLines(FaultyStore(store, Random(1), refused=0.3), Waits()).refuse_unsafe()
    unsafe = Overwriting(dict(store.objects))
    with pytest.raises(ConfigError) as refused:
        ObjectLines(unsafe, Waits()).refuse_unsafe()
    assert refused.value.code is Code.PLACE_UNSAFE
    assert unsafe.objects == store.objects


def damaged(objects: dict[str, bytes]) -> None:
    """Raises unless these objects are a whole manifest."""
    list(check_lines(ObjectLines(MemoryStore(objects), Waits()).read(), SIGNER.public_key))


def test_a_missing_overwritten_or_foreign_object_shows() -> None:
    """Goal: the chain protects objects as it does a file. Method: each kind of damage to each object but the last."""
    store = MemoryStore()
    manifest = opened(store, Waits())
    for number in range(1, 4):
        manifest.append(SIGNER, [adopted(number)])
    damaged(store.objects)
    for name, after in pairwise(sorted(store.objects)):
        for changed in (
            {key: value for key, value in store.objects.items() if key != name},
            store.objects | {name: store.objects[after]},
            store.objects | {name: store.objects[name].replace(b'"at_us":', b'"at_us":1')},
        ):
            with pytest.raises(BadLine):
                damaged(changed)
    last = max(store.objects)
    for changed in (
        store.objects | {last: store.objects[last][:-1]},
        store.objects | {last: b""},
        store.objects | {f"{FOLDER}notes.txt": b"\n"},
    ):
        with pytest.raises(ArchiveDamaged):
            damaged(changed)


@pytest.mark.parametrize("seed", few_quick(range(200), 40))
def test_archivers_on_a_store_that_fails_make_one_chain(seed: int) -> None:
    """Goal: whatever fails and whoever is killed, the lines are one chain, with all that was acknowledged, in order.

    Method: archivers that lag by chance append to a store with 503s and lost answers; killed ones read anew.
    """
    random, inner = Random(seed), MemoryStore(locked=seed % 2 == 0)
    store = FaultyStore(inner, random, refused=0.3, lost=0.3)
    archivers: list[Manifest | None] = [None] * 3
    acknowledged: list[tuple[int, int]] = []
    for number in range(40):
        writer = random.randrange(len(archivers))
        try:
            archiver = archivers[writer] = archivers[writer] or opened(store, Waits())
            count = random.randint(1, 3)
            archiver.append(SIGNER, [adopted(number * 10 + at, writer) for at in range(count)])
            acknowledged += [(writer, number * 10 + at) for at in range(count)]
        except (ArchiveContended, PlaceUnavailable):
            archivers[writer] = None
        if random.random() < 0.1:
            archivers[writer] = None  # killed
    chain = [line for line, _ in check_lines(ObjectLines(inner, Waits()).read(), SIGNER.public_key)]
    written = [(int(line.adopted.topic_id[-1]), line.adopted.at_us) for line in chain if line.adopted is not None]
    assert [entry for entry in written if entry in set(acknowledged)] == acknowledged
    assert len(acknowledged) > 5
