"""Carries out the faults of a plan: at their time, or when their target is at the step that they wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ha.errors import HaError
from replica.notary.errors import NotActive
from tests.simulation.doubles.database import Tables
from tests.simulation.plan import OF_A_DATABASE, Fault, FaultKind
from tests.simulation.restoring import lose_tail
from tests.simulation.weather import LeaderCut

if TYPE_CHECKING:
    from tests.simulation.replica import Replica
    from tests.simulation.world import World


class _Armed:
    """A fault that waits for a step."""

    __slots__ = ("fault", "turns_left")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.turns_left = fault.skip


class Misfortune:
    """All planned faults of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._armed: list[_Armed] = []
        self._random = Random(f"{world.plan.seed}/misfortune")
        self._over = False

    def plan(self) -> None:
        """Set the timers."""
        for fault in self._world.plan.faults:
            has_target = not (self._world.plan.lease and fault.kind in OF_A_DATABASE)
            if has_target and fault.at_s < self._world.plan.duration_s:
                self._world.loop.call_at(fault.at_s, self._due, fault)

    def watch(self, replica: Replica) -> Callable[[], None] | None:
        """The hook for a replica's process: None while no fault waits for a step."""
        return partial(self._stepped, replica) if self._armed else None

    def heal(self) -> None:
        """End all faults: start what is down, continue what is stopped, reconnect what is cut."""
        world = self._world
        self._over = True
        self._armed.clear()
        world.skies.clear()
        world.primary.accepts = True
        self._let_publish()
        if world.deposed is not None:
            self._end_split()
        if world.plan.worded:
            world.people.end_pauses()
        world.service_pauses.end()
        for replica in world.replicas:
            replica.clock.ahead_us = 0
            if replica.core is None:
                replica.restart_later(after_failure=True)
            else:
                self._go_on(replica)

    def _due(self, fault: Fault) -> None:
        if fault.kind is FaultKind.LEADER_CUT:
            self._cut_leader(fault)
            return
        if fault.step:
            self._armed.append(_Armed(fault))
            for replica in self._world.replicas:
                if replica.core is not None:
                    replica.core.process.on_step = self.watch(replica)
            return
        name = fault.target or self._world.holder()
        self._strike(fault, self._world.replica(name) if name else self._random.choice(self._world.replicas))

    def _stepped(self, replica: Replica) -> None:
        """A replica took a turn: trigger the fault that waits for its step, if any."""
        step = replica.step()
        for armed in self._armed:
            if step == armed.fault.step and armed.fault.target in ("", replica.name):
                armed.turns_left -= 1
                if armed.turns_left < 0:
                    self._armed.remove(armed)
                    self._world.context.copy().run(self._strike, armed.fault, replica)
                return

    def _strike(self, fault: Fault, replica: Replica) -> None:
        world = self._world
        step = replica.step()
        if self._carry_out(fault, replica):
            world.skies.strikes[fault.kind, step] += 1
            world.story.tell("fault", fault.kind, target=replica.name, step=step, lasts=fault.duration_s or None)

    def _carry_out(self, fault: Fault, replica: Replica) -> bool:
        """Whether the fault had a target."""
        world, weather = self._world, self._world.skies.of(replica.name)
        match fault.kind:
            case FaultKind.CRASH | FaultKind.CRASH_HOST | FaultKind.CRASH_TORN:
                return self._crash(fault, replica)
            case FaultKind.STALL:
                return self._stall(fault, replica)
            case FaultKind.TERMINATE:
                world.terminate(replica)
            case FaultKind.SWITCHOVER:
                return self.switch_over(replica)
            case FaultKind.DISK_ERROR:
                weather.disk_broken = True
                self._later(fault.duration_s, self._mend_disk, replica)
            case FaultKind.SESSION_KILLED:
                return self._kill_session(replica)
            case FaultKind.DATABASE_RESTART:
                world.sessions_cut_short()
                world.primary.end_all()
                self._close_database(fault)
            case FaultKind.DATABASE_FAIL_OVER:
                world.fail_over(int(fault.amount), old_lives_on=False)
                self._close_database(fault)
            case FaultKind.DATABASE_SPLIT:
                return self._split(fault)
            case FaultKind.DATABASE_CUT:
                weather.database_cut = True
                self._later(fault.duration_s, self._join_database, replica)
            case FaultKind.DATABASE_WEATHER:
                weather.database_share = fault.amount
                self._later(fault.duration_s, self._calm_database, replica)
            case FaultKind.LOG_CUT:
                self.cut_log(replica, fault.duration_s)
            case FaultKind.LOG_CLOGGED:
                weather.log_clogged_until_s = world.loop.time() + fault.duration_s
            case FaultKind.ISLAND:
                weather.database_cut, weather.log_cut = not world.plan.lease, True
                self._kill_session(replica)
                self._later(fault.duration_s, self._join_database, replica)
                self._later(fault.duration_s, self._join_log, replica)
            case FaultKind.LOG_WEATHER:
                weather.log_share = fault.amount
                self._later(fault.duration_s, self._calm_log, replica)
            case FaultKind.READS_LATE:
                weather.reads_late_s = fault.amount
                self._later(fault.duration_s, self._calm_reads, replica)
            case FaultKind.CLOCK_JUMP:
                replica.clock.ahead_us += int(fault.amount * 1e6)
                self._later(fault.duration_s, self._set_clock, replica)
            case FaultKind.LINK_CUT:
                return self._cut_link(replica)
            case FaultKind.READER_SILENT:
                return self._silence_reader(replica)
            case FaultKind.CLIENT_WEATHER:
                world.skies.client_share = fault.amount
                self._later(fault.duration_s, self._calm_clients, replica)
            case FaultKind.PRUNED:
                return self._prune(fault, replica)
            case FaultKind.SERVICE_PAUSED:
                return world.service_pauses.begin(fault.duration_s)
            case FaultKind.PAUSED:
                world.people.pause(replica.name, fault.duration_s)
            case FaultKind.BOUND_SAID:
                world.people.raise_bound(replica.name, int(fault.amount))
            case FaultKind.DATABASE_RESTORED:
                self._back_up(fault)
            case FaultKind.TAIL_LOST:
                self._end_split()
                world.skies.leader_cut = None
                return lose_tail(world, int(fault.amount))
            case FaultKind.POWER_CUT:
                world.skies.leader_cut = None
                return world.power.strike(fault)
            case FaultKind.DISK_CLONED:
                return world.power.clone_disk(replica, is_foreign=not fault.amount)
            case FaultKind.POSITION_DAMAGED:
                return world.power.damage_position(replica)
            case FaultKind.PEERS_APART:
                world.power.apart_until_s = world.loop.time() + fault.duration_s
            case FaultKind.PUBLICATION_HELD:
                world.primary.tables.publication_held = True
                world.loop.call_later(fault.duration_s, self._let_publish)
            case FaultKind.POISON:
                world.topic.store(self._random.choice((b"", b"\xc1", b"\x97\x00", self._random.randbytes(40))))
        return True

    def _later(self, after_s: float, action: Callable[[Replica], None], replica: Replica) -> None:
        self._world.loop.call_later(after_s, action, replica)

    # ---- processes ----

    def _crash(self, fault: Fault, replica: Replica) -> bool:
        if replica.core is None:
            return False
        heard_s = self._random.choice((0.001, 0.05, 0.5)) if fault.kind is FaultKind.CRASH else None
        replica.kill(heard_s)
        if fault.kind is FaultKind.CRASH_TORN:
            lost = replica.disk.tear(int(fault.amount))
            self._world.story.tell(replica.name, "torn", batches=lost)
        replica.restart_later(after_failure=True)
        return True

    def _stall(self, fault: Fault, replica: Replica) -> bool:
        if replica.core is None or replica.core.process.stopped:
            return False
        replica.core.process.stop()
        self._later(fault.duration_s, self._go_on, replica)
        return True

    def _go_on(self, replica: Replica) -> None:
        if replica.core is not None and replica.core.process.stopped:
            self._world.story.tell(replica.name, "goes on")
            process = replica.core.process
            process.stopped = False
            self._world.claims_changed(replica)  # its first words
            process.stopped = True
            process.go_on()

    def switch_over(self, replica: Replica) -> bool:
        core = replica.core
        if core is None:
            return False
        core.process.deliver(lambda: core.process.start(core.election.switchover()))
        return True

    def _mend_disk(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).disk_broken = False

    def _set_clock(self, replica: Replica) -> None:
        replica.clock.ahead_us = 0

    def _cut_link(self, replica: Replica) -> bool:
        if replica.core is None:
            return False
        replica.core.new_link(self._world.link_answer_max_s, self._world)
        return True

    # ---- the database ----

    def _kill_session(self, replica: Replica) -> bool:
        world = self._world
        killed = False
        for server in world.servers:
            for pid in server.sessions_of(replica.name):
                world.sessions_cut_short()
                server.end(pid)
                killed = True
        return killed

    def _close_database(self, fault: Fault) -> None:
        server = self._world.primary
        server.accepts = False
        self._world.loop.call_later(fault.duration_s, self._open_database, server)

    def _open_database(self, server: object) -> None:
        if server is self._world.primary:
            self._world.primary.accepts = True

    def _let_publish(self) -> None:
        self._world.primary.tables.publication_held = False

    def _split(self, fault: Fault) -> bool:
        world = self._world
        if world.deposed is not None:
            return False
        holder = world.holder()
        world.on_deposed = {r.name for r in world.replicas if r.name == holder or self._random.random() < 0.3}
        world.fail_over(int(fault.amount), old_lives_on=True)
        if holder:  # it serves on the old server's lock, and does not read its successor's records yet
            weather = world.skies.of(holder)
            weather.reads_late_s = max(weather.reads_late_s, self._random.choice((0.0, 0.5, 3.0)))
            self._later(fault.duration_s, self._calm_reads, world.replica(holder))
        for replica in world.replicas:
            if replica.name not in world.on_deposed and world.deposed is not None:
                for pid in world.deposed.sessions_of(replica.name):
                    world.deposed.end(pid)
        world.splits += 1
        world.loop.call_later(fault.duration_s, self._end_split)
        return True

    def _end_split(self) -> None:
        world = self._world
        if world.deposed is not None:
            world.deposed.accepts = False
            world.deposed.end_all()
            world.deposed = None
            world.on_deposed = set()
            world.sessions_cut_short()

    def _prune(self, fault: Fault, replica: Replica) -> bool:
        """An operator calls the admin listener; a replica that does not lead refuses."""
        core, world = replica.core, self._world
        if core is None or not replica.claims_to_lead:
            return False

        async def prune() -> None:
            try:
                await core.participant.prune(int(fault.amount) or None, 0.0)
            except (NotActive, HaError) as error:
                world.story.tell(replica.name, "not pruned", detail=f"{error!r}")
            except Exception as error:
                world.blame(f"{replica.name}: pruning failed with {error!r}")

        core.process.deliver(lambda: core.process.start(prune()))
        return True

    def _back_up(self, fault: Fault) -> None:
        """Take a backup now; restore it later, to a server that continues from there."""
        world = self._world
        backup = world.primary.tables.copied()
        world.story.tell("database", "backup", ledger_end=len(backup.completions))
        world.loop.call_later(fault.duration_s, self._bring_back, backup, bool(fault.amount))

    def _bring_back(self, backup: Tables, elsewhere: bool) -> None:
        if not self._over:
            self._end_split()
            self._world.restore(backup, elsewhere=elsewhere)

    def _join_database(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).database_cut = False

    def _calm_database(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).database_share = 0.0

    # ---- the log, and clients ----

    def _cut_leader(self, fault: Fault) -> None:
        """Existing connections stay with the old leader; the other brokers elect a new one after a while."""
        skies, now_s = self._world.skies, self._world.loop.time()
        if skies.leader_cut is not None:
            return
        cut = LeaderCut(self._world.topic.end_offset, now_s, now_s + skies.views.uniform(0.2, 1.5))
        skies.leader_cut = cut
        for replica in self._world.replicas:
            skies.struck(fault.kind, replica.name)
        self._world.story.tell("fault", fault.kind, end=cut.end, lasts=fault.duration_s)
        self._world.loop.call_later(fault.duration_s, self._join_leader, cut)

    def _join_leader(self, cut: LeaderCut) -> None:
        if self._world.skies.leader_cut is cut:
            self._world.skies.leader_cut = None

    def _silence_reader(self, replica: Replica) -> bool:
        reader = None if replica.core is None else replica.core.log.reader
        if reader is None:
            return False
        reader.silent = True
        return True

    def cut_log(self, replica: Replica, lasts_s: float) -> None:
        """The replica cannot reach the log."""
        self._world.skies.of(replica.name).log_cut = True
        self._later(lasts_s, self._join_log, replica)

    def _join_log(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).log_cut = False

    def _calm_log(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).log_share = 0.0

    def _calm_reads(self, replica: Replica) -> None:
        self._world.skies.of(replica.name).reads_late_s = 0.0

    def _calm_clients(self, _: Replica) -> None:
        self._world.skies.client_share = 0.0
