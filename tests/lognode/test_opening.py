"""A node's log is verified as a whole when it is opened: sealed files at once, the rest entry by entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha.raft.core import LogIncomplete, Raft
from ha.raft.messages import Entry, Kind
from replica.log.raft.opening import Opened, Opening, Shape
from replica.log.raft.segments import segment_name
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import SignedLog
from replica.log.raft.words import KeptWords
from tests.lognode.test_copying import LOG, NEW, NEW_SEED, SEGMENT_BYTES, Peer

SEALED = [
    seal.first_idx for idx in range(1, len(LOG)) if (seal := Peer().log.sealed_with(idx)) and seal.first_idx == idx
]

RAWS = [entry.idx for entry in LOG if entry.kind is Kind.RAW]


def opening_of(peer: Peer) -> Opening:
    return Opening("g", NEW, NEW_SEED, peer.files.copy(), SEGMENT_BYTES)


def core_of(opened: Opened) -> Raft:
    settings = LogNodeSettings(group="g", name="r9", listen="127.0.0.1:1", data_dir=Path("."))
    return Raft.restored(NEW, settings.raft(), lambda: 0.0, opened.log.hard_state, opened.shape)


def one_by_one(peer: Peer) -> Opened:
    log = opening_of(peer).log
    signed, shape = SignedLog("g", NEW, NEW_SEED), Shape()
    signed.append(LOG)
    shape.add(LOG, log.hard_state.commit_idx)
    words = KeptWords()
    words.append(LOG)
    words.committed(log.hard_state.commit_idx)
    return Opened(NEW, log, signed, shape, words)


@pytest.mark.parametrize("damaged", [[], SEALED[:1], SEALED[1:2], SEALED[-1:], SEALED])
def test_a_log_is_the_same_whether_read_by_files_or_by_entries(damaged: list[int]) -> None:
    """Goal: nothing is skipped. Method: some files damaged and repaired; the entries one by one beside it."""
    peer = Peer()
    for first_idx in damaged:
        peer.files.now[segment_name(first_idx)].data[700] ^= 1
    opening = opening_of(peer)
    assert [seal.first_idx for seal in opening.log.damaged] == damaged
    for seal in opening.log.damaged:
        assert opening.log.repair(seal, LOG[seal.first_idx - 1 : seal.last_idx])
    found, wanted = opening.finished(), one_by_one(Peer())
    assert len(SEALED) > 3
    assert list(found.log.entries()) == LOG
    assert (found.signed.root(), found.signed.last_idx) == (wanted.signed.root(), len(LOG))
    assert found.signed.keys == wanted.signed.keys
    assert found.words.under("") == wanted.words.under("")
    assert len(found.words.under("name-")) == 4
    assert core_of(found).details() == core_of(wanted).details()


@pytest.mark.parametrize("idx", [RAWS[0], RAWS[len(RAWS) // 2], RAWS[-1]])
def test_a_log_that_nobody_signed_is_refused(idx: int) -> None:
    """Goal: files that hold by themselves are compared with the signatures. Method: one differs, sealed."""
    other = [Entry(each.view, idx, body=b"x" * len(each.body)) if each.idx == idx else each for each in LOG]
    with pytest.raises(LogIncomplete, match="another log than was signed"):
        opening_of(Peer(other)).finished()
