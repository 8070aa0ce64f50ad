"""The contract of a store of objects. A class that inherits it provides the fixture `store`: a new, empty one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from hashlib import sha256
from io import SEEK_END
from itertools import repeat
from pathlib import Path
from random import Random

import pytest

from pipeline.places import store as places
from pipeline.places.file import open_object
from pipeline.places.store import ObjectExists, ObjectMissing, Store, digest_of, fetch, keep, keep_file
from replica.notary.errors import PlaceAccessDenied

WRITERS = 8


class PlaceContract:
    """What every adapter of pipeline/places keeps to."""

    @pytest.fixture(autouse=True)
    def small_ranges(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So that a test's objects are read in several ranges."""
        monkeypatch.setattr(places, "RANGE_BYTES", 1 << 20)

    def test_what_was_created_is_listed_and_read(self, store: Store) -> None:
        """Goal: nothing is lost or mixed up. Method: objects of no, one and many parts, in two folders."""
        assert store.names("") == []
        store.create("b/2", [])
        store.create("b/1", [b"one"])
        store.create("a/1.jsonl", repeat(b"x" * 1_000, 3_000))
        assert store.names("") == ["a/1.jsonl", "b/1", "b/2"]
        assert store.names("b/") == ["b/1", "b/2"]
        assert store.names("c/") == []
        assert [store.read(name) for name in ("b/1", "b/2")] == [b"one", b""]
        assert store.read("a/1.jsonl") == b"x" * 3_000_000

    def test_an_object_is_read_in_parts(self, store: Store) -> None:
        """Goal: no more is read than is asked for. Method: ranges inside, at the end, and over it."""
        store.create("a/1", [b"01234", b"56789"])
        assert store.size("a/1") == 10
        assert [store.read_range("a/1", *at) for at in ((0, 10), (2, 3), (9, 1), (8, 100))] == [
            b"0123456789",
            b"234",
            b"9",
            b"89",
        ]
        for call in (lambda: store.size("a/2"), lambda: store.read_range("a/2", 0, 1)):
            with pytest.raises(ObjectMissing):
                call()

    @pytest.mark.parametrize("size", [0, 1, 3_000_000])
    def test_a_file_is_sent_and_fetched_whole(self, store: Store, tmp_path: Path, size: int) -> None:
        """Goal: a file of any size comes back as it was. Method: send, fetch in ranges of a megabyte, send again."""
        content = Random(size).randbytes(size)
        file, digest = tmp_path / "file", sha256(content).hexdigest()
        file.write_bytes(content)
        with pytest.raises(ObjectMissing):
            fetch(store, f"a/{digest}", tmp_path / "missing", _never)
        assert not (tmp_path / "missing").exists()
        for _ in range(2):
            keep_file(store, f"a/{digest}", file, digest, _never)
        fetch(store, f"a/{digest}", tmp_path / "fetched", _never)
        assert (tmp_path / "fetched").read_bytes() == content
        assert (store.size(f"a/{digest}"), digest_of(store, f"a/{digest}", _never)) == (size, digest)
        store.create("a/other", [b"other content"])
        with pytest.raises(ObjectExists):
            keep_file(store, "a/other", file, digest, _never)
        with open_object(store, f"a/{digest}", _never) as opened:
            assert opened.seek(0, SEEK_END) == size
            assert (opened.seek(size // 2), opened.read()) == (size // 2, content[size // 2 :])

    def test_a_missing_object_is_an_error_of_its_own(self, store: Store) -> None:
        """Goal: missing is not empty. Method: read and remove what never was; remove what was."""
        with pytest.raises(ObjectMissing):
            store.read("a/1")
        store.remove("a/1")
        store.create("a/1", [b"one"])
        if store.remove("a/1"):
            assert store.names("") == []
            with pytest.raises(ObjectMissing):
                store.read("a/1")

    def test_an_object_is_never_overwritten(self, store: Store) -> None:
        """Goal: written once. Method: write again, the same and other bytes."""
        store.create("a/1", [b"one"])
        for content in (b"two", b"one", b""):
            with pytest.raises(ObjectExists):
                store.create("a/1", [content])
        assert store.read("a/1") == b"one"

    def test_an_object_is_replaced_whole(self, store: Store, tmp_path: Path) -> None:
        """Goal: the next report stands where the one before did. Method: none there, then larger, smaller, empty ones;
        a store that keeps objects for good refuses, and has the one before."""
        store.create("b/1", [b"other"])
        kept_for_good = not store.remove("b/1")
        file, before = tmp_path / "file", None
        for content in (b"one", Random(1).randbytes(3_000_000), b"two", b""):
            file.write_bytes(content)
            if kept_for_good and before is not None:
                with pytest.raises(PlaceAccessDenied):
                    store.replace("a/1", file)
            else:
                store.replace("a/1", file)
                before = content
            assert store.read("a/1") == before
        assert store.names("a/") == ["a/1"]

    def test_a_killed_writer_leaves_nothing(self, store: Store) -> None:
        """Goal: whole or not at all. Method: the parts end with an error; another writer has the name afterwards."""

        def parts() -> Iterator[bytes]:
            yield b"half"
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.create("a/1", parts())
        assert store.names("") == []
        store.create("a/1", [b"whole"])
        assert store.read("a/1") == b"whole"

    def test_a_slow_writer_does_not_replace_a_quick_one(self, store: Store) -> None:
        """Goal: the first whole object stays. Method: between two parts of one writer another one writes all."""

        def parts() -> Iterator[bytes]:
            yield b"slow "
            assert store.names("") == []
            store.create("a/1", [b"quick"])
            yield b"writer"

        with pytest.raises(ObjectExists):
            store.create("a/1", parts())
        assert store.read("a/1") == b"quick"
        assert store.names("") == ["a/1"]

    def test_of_many_writers_one_succeeds(self, store: Store) -> None:
        """Goal: two archivers cannot both append. Method: threads that write other bytes under one name at once."""
        start, won = threading.Barrier(WRITERS), []

        def write(number: int) -> None:
            start.wait()
            try:
                store.create("a/1", [b"writer %d" % number])
            except ObjectExists:
                return
            won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read("a/1") == b"writer %d" % won[0]

    def test_the_same_bytes_may_be_kept_twice(self, store: Store) -> None:
        """Goal: a lost answer does no harm. Method: keep an object twice, then other bytes under its name."""
        keep(store, "a/1", b"one", sleep=_never)
        keep(store, "a/1", b"one", sleep=_never)
        with pytest.raises(ObjectExists):
            keep(store, "a/1", b"two", sleep=_never)


def _never(seconds: float) -> None:
    raise AssertionError(f"waited {seconds} s for a store that answers")
