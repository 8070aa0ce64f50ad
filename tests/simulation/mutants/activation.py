"""Defects of an activation: epoch, barrier, backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

import replica.active.opening
from ha.ending import Cause, Ending
from replica.active.activation import Activation
from replica.active.catching_up import until_applied
from replica.active.holder import Holder
from replica.active.opening import Opening
from replica.active.parts import Parts
from replica.notary.formats import Formats
from replica.notary.position import Position
from replica.store.interface import Published
from replica.store.memory import MemoryStore
from tests.simulation.mutants.registry import mutant


@mutant("the activation does not wait for its barrier to come into force")
def barrier_not_checked(patch: MonkeyPatch) -> None:
    async def trusting(self: Opening, formats: Formats) -> Position:
        self._holder.append_barrier(self.epoch, formats, pauses=False)
        position = self._holder.in_force = await until_applied(self._parts, lambda _: True, "any")
        return position

    patch.setattr(Opening, "put_barrier_in_force", trusting)
    _deaf_to(patch, Cause.SUPERSEDED)


def _deaf_to(patch: MonkeyPatch, cause: Cause) -> None:
    make = Activation.__init__

    def deaf(self: Activation, parts: Parts, *rest: Any, **named: Any) -> None:
        def step_down(ending: Ending) -> None:
            if ending.cause is not cause:
                parts.step_down(ending)

        make(self, replace(parts, step_down=step_down), *rest, **named)

    patch.setattr(Activation, "__init__", deaf)


def _named(patch: MonkeyPatch, activation_id: Callable[[Holder, int, int], bytes]) -> None:
    """Activation ids come from a function of holder, epoch and length, not from chance."""
    append = Holder.append_barrier

    def named(self: Holder, epoch: int, formats: Formats, *, pauses: bool) -> None:
        self._parts = replace(self._parts, random_bytes=lambda count: activation_id(self, epoch, count))
        append(self, epoch, formats, pauses=pauses)

    patch.setattr(Holder, "append_barrier", named)


@mutant("activations are told apart by their epoch only")
def epochs_without_activation_ids(patch: MonkeyPatch) -> None:
    _named(patch, lambda _, epoch, count: epoch.to_bytes(count, "big"))


@mutant("a replica uses one activation id for all its activations")
def own_old_barrier_taken_for_the_new_one(patch: MonkeyPatch) -> None:
    _named(patch, lambda holder, _, count: holder._parts.name.encode().ljust(count)[:count])


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

    patch.setattr(replica.active.opening, "publish_backlog", skip)
