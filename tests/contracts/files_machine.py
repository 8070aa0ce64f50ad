"""The disk of a log node as random calls: the folder in memory and a real one answer the same.

What a crash leaves is drawn by the double alone; `test_power_cut_parts.py` cuts the power of a real disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from replica.log.raft.files import Files
from tests.contracts.side_by_side import SideBySide
from tests.lognode.sim_files import SimFiles

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(1, 9_000)
PLACES = st.sampled_from([0, 1, 7, 4_096, 5_000])
CALLS = st.one_of(
    st.tuples(st.sampled_from(["create", "create", "sync", "remove"]), NAMES),
    st.tuples(st.sampled_from(["reserve", "cut"]), NAMES, SIZES),
    st.tuples(st.just("write"), NAMES, PLACES, st.binary(min_size=1, max_size=20)),
    st.tuples(st.just("read_at"), NAMES, PLACES, SIZES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.sampled_from(["sync_names", "close"])),
)


class FilesMachine(SideBySide[Files]):
    """Every call of the protocol, on files that are there or not."""

    def ask(self, call: str, *arguments: object) -> Any:
        async def asked(files: Files) -> Any:
            return getattr(files, call)(*arguments)

        return self.same(asked)

    @rule(call=CALLS)
    def calls(self, call: tuple[Any, ...]) -> None:
        self.ask(*call)

    @invariant()
    def same_files(self) -> None:
        for name in self.ask("names"):
            self.ask("read", name)


@asynccontextmanager
async def files_in_memory() -> AsyncIterator[Files]:
    """The double's."""
    yield SimFiles()
