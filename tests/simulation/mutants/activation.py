"""Defects of an activation: epoch, barrier, backlog, settlements."""

from __future__ import annotations

import asyncio
from typing import Any

from pytest import MonkeyPatch

import replica.active.activation
import replica.active.publisher
import replica.following.apply
import replica.notary.reading
import replica.notary.rules
import replica.participant
from ha.ending import Cause
from replica.active.activation import Activation
from replica.notary.position import Position
from replica.notary.records import (
    FORMAT,
    BarrierRecord,
    SettlementRecord,
    encode_record,
)
from replica.notary.rules import TX_KEY
from replica.store.interface import Published
from replica.store.memory import MemoryStore
from tests.simulation.mutants.registry import mutant


@mutant("the activation does not wait for its barrier to come into force")
def barrier_not_checked(patch: MonkeyPatch) -> None:
    async def trusting(self: Activation) -> Position:
        self.activation_id = self._random_bytes(16)
        barrier = BarrierRecord(self.epoch, self.activation_id, self._name, self._database, FORMAT, 1)
        self._require_writer().append(encode_record(barrier))
        self._in_force = await self._applied(lambda _: True, "any")
        return self._in_force

    patch.setattr(Activation, "_put_barrier_in_force", trusting)
    _deaf_to(patch, Cause.SUPERSEDED)


def _deaf_to(patch: MonkeyPatch, cause: Cause) -> None:
    make = Activation.__init__

    def deaf(self: Activation, **parts: Any) -> None:
        lost = parts.pop("on_lost")
        make(self, on_lost=lambda ending: None if ending.cause is cause else lost(ending), **parts)

    patch.setattr(Activation, "__init__", deaf)


@mutant("activations are told apart by their epoch only")
def epochs_without_activation_ids(patch: MonkeyPatch) -> None:
    put = Activation._put_barrier_in_force

    async def numbered(self: Activation) -> Position:
        self._random_bytes = lambda count: self.epoch.to_bytes(count, "big")
        return await put(self)

    patch.setattr(Activation, "_put_barrier_in_force", numbered)


@mutant("a replica uses one activation id for all its activations")
def own_old_barrier_taken_for_the_new_one(patch: MonkeyPatch) -> None:
    put = Activation._put_barrier_in_force

    async def named(self: Activation) -> Position:
        self._random_bytes = lambda count: self._name.encode().ljust(count)[:count]
        return await put(self)

    patch.setattr(Activation, "_put_barrier_in_force", named)


@mutant("an active that takes the lock again goes on in its old epoch")
def reclaim_without_a_new_epoch(patch: MonkeyPatch) -> None:
    last: dict[tuple[int, str], int] = {}
    raise_epoch = MemoryStore.raise_epoch

    async def lazy(self: MemoryStore, above: int, name: str) -> int:
        key = (id(asyncio.get_running_loop()), name)
        epoch = last.pop(key, -1)
        if epoch != above:
            epoch = last[key] = await raise_epoch(self, above, name)
        return epoch

    patch.setattr(MemoryStore, "raise_epoch", lazy)
    own_old_barrier_taken_for_the_new_one(patch)


@mutant("what lies between the published position and the barrier is not published")
def backlog_not_published(patch: MonkeyPatch) -> None:
    async def skip(*_: Any, published: Published, **__: Any) -> Published:
        return published

    patch.setattr(replica.active.activation, "publish_backlog", skip)


@mutant("pending commands are settled before the backlog is published")
def commands_settled_before_publishing(patch: MonkeyPatch) -> None:
    put = Activation._put_barrier_in_force

    async def hasty(self: Activation) -> Position:
        position = await put(self)
        pending = await self._store.pending(1_000)
        if pending:
            commands = tuple(replica.active.activation._settled(command) for command in pending)
            sequence = self._next_sequence()
            record = SettlementRecord(FORMAT, self.activation_id, sequence, commands)
            self._require_writer().append(encode_record(record))
            await self._applied(lambda at: any(a <= sequence < b for a, b in at.seen), "a settlement")
        return position

    patch.setattr(Activation, "_put_barrier_in_force", hasty)


@mutant("a pending command whose transaction is in the index counts as decided")
def commands_settled_from_the_index(patch: MonkeyPatch) -> None:
    settle = Activation._settle

    class Sparing:
        def __init__(self, activation: Activation) -> None:
            self._activation, self._store = activation, activation._store

        async def pending(self, limit: int) -> list[Any]:
            pending = await self._store.pending(limit)
            known = self._activation._index.lookup([TX_KEY + command.tx_id for command in pending])
            return [command for command, value in zip(pending, known, strict=True) if value is None]

    async def spare(self: Activation) -> None:
        store, self._store = self._store, Sparing(self)  # type: ignore[assignment]
        try:
            await settle(self)
        finally:
            self._store = store

    patch.setattr(Activation, "_settle", spare)


@mutant("pending commands are never settled")
def commands_never_settled(patch: MonkeyPatch) -> None:
    async def forget(self: Activation) -> None:
        await asyncio.sleep(0)

    patch.setattr(Activation, "_settle", forget)
