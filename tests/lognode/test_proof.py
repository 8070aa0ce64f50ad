"""A record's place in the log, proven to somebody who has nothing but the log's id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from ha.raft.messages import Entry, Kind
from replica.cli.main import app
from replica.log.raft.proof import LogProof, Prover, log_id_of, problem_of
from replica.log.raft.records import leaf_of_entry
from replica.log.raft.signing import SignedLog, encode_keys, public_key_of
from replica.notary.merkle import tree_levels

SEEDS = {"r1.a": b"1" * 32, "r2.b": b"2" * 32, "r3.c": b"3" * 32}
GROUP = "g"


class Log:
    """A log that several leaders signed, one after the other."""

    def __init__(self) -> None:
        self.nodes = {node: SignedLog(GROUP, node, seed) for node, seed in SEEDS.items()}
        self.entries: list[Entry] = []

    def add(self, leader: str, view: int, *what: bytes | tuple[str, ...]) -> None:
        """Records, and configurations by their members; then the leader's signature."""
        entries = []
        for idx, one in enumerate(what, len(self.entries) + 1):
            if isinstance(one, bytes):
                entries.append(Entry(view, idx, body=one))
            else:
                keys = encode_keys({node: public_key_of(SEEDS[node]) for node in one})
                entries.append(Entry(view, idx, Kind.RECONFIGURATION, keys, one))
        entries.append(self.nodes[leader].sign(entries, view, 1_700_000_000_000))
        self.entries += entries
        for node, signed in self.nodes.items():
            if node != leader:
                signed.append(entries)

    def prove(self, offset: int, step: int = 1_000) -> LogProof:
        records = [entry.idx for entry in self.entries if entry.kind is Kind.RAW]
        prover = Prover(GROUP, records[offset], offset)
        for at in range(0, len(self.entries), step):
            proof = prover.read(self.entries[at : at + step])
            if proof is not None:
                return proof
        raise AssertionError("no signature covers it")

    @property
    def log_id(self) -> str:
        return log_id_of(self.entries[0])


def made() -> Log:
    """r1 begins, adds the others; r2 leads and replaces; r3 leads, whom r2 had made a member again."""
    log = Log()
    log.add("r1.a", 2, ("r1.a",))
    log.add("r1.a", 2, b"a", b"b", ("r1.a", "r2.b"), b"c")
    log.add("r2.b", 4, b"d", ("r2.b", "r3.c"))
    log.add("r2.b", 4, *(bytes([at]) for at in range(20)))
    log.add("r3.c", 7, b"e")
    return log


def test_every_record_is_proven_by_the_logs_id_alone() -> None:
    """Goal: nothing is trusted but the id. Method: each record of a log with three leaders; answers of any length."""
    log = made()
    records = [entry for entry in log.entries if entry.kind is Kind.RAW]
    for offset, record in enumerate(records):
        for step in (1, 5, 1_000):
            proof = log.prove(offset, step)
            assert problem_of(proof, log.log_id) is None
            assert proof.record.entry == record
        assert problem_of(msgspec.json.decode(msgspec.json.encode(proof), type=LogProof), log.log_id) is None


Change = Callable[[LogProof], LogProof]


def of(name: str, **fields: Any) -> Change:
    """Change a part of the record's proof."""

    def change(proof: LogProof) -> LogProof:
        part = getattr(proof.record, name)
        record = msgspec.structs.replace(proof.record, **{name: msgspec.structs.replace(part, **fields)})
        return msgspec.structs.replace(proof, record=record)

    return change


def signed_by(**fields: Any) -> Change:
    def change(proof: LogProof) -> LogProof:
        signature = msgspec.structs.replace(proof.record.head.signature, **fields)
        return of("head", signature=signature)(proof)

    return change


def with_path(path: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Change:
    def change(proof: LogProof) -> LogProof:
        record = msgspec.structs.replace(proof.record, path=path(proof.record.path))
        return msgspec.structs.replace(proof, record=record)

    return change


def stranger(proof: LogProof) -> LogProof:
    """Signed anew by somebody who is no member, over a log of one's own."""
    signed = SignedLog(GROUP, "r9.z", b"9" * 32)
    keys = encode_keys({"r9.z": public_key_of(b"9" * 32)})
    entries = [Entry(2, 1, Kind.RECONFIGURATION, keys, ("r9.z",)), Entry(2, 2, body=b"forged")]
    prover = Prover(GROUP, 2, 0)
    found = prover.read([*entries, signed.sign(entries, 2, 0)])
    assert found is not None
    return msgspec.structs.replace(found, first=proof.first, log_id=proof.log_id)


FORGERIES: dict[str, tuple[Change, str]] = {
    "another body": (of("entry", body=b"x"), "does not lead to the root"),
    "another place": (of("entry", idx=2), "does not lead to the root"),
    "another view": (of("entry", view=3), "does not lead to the root"),
    "another size of the log": (of("head", idx=999), "does not lead to the root"),
    "another view of the signature": (of("head", view=9), "not by a node that is known"),
    "another signer": (signed_by(node_id="r1.a"), "not by a node that is known"),
    "another time": (signed_by(at_ms=1), "not by a node that is known"),
    "a shorter path": (with_path(lambda path: path[:-1]), "does not lead to the root"),
    "a longer path": (with_path(lambda path: (*path, bytes(32))), "does not lead to the root"),
    "another group": (lambda proof: msgspec.structs.replace(proof, group="h"), "not by a node that is known"),
    "without the members": (lambda proof: msgspec.structs.replace(proof, members=()), "not by a node that is known"),
    "a member by itself": (
        lambda proof: msgspec.structs.replace(proof, members=proof.members[1:]),
        "not by a node that is known",
    ),
    "a stranger's log": (stranger, "not by a node that is known"),
    "a configuration in the record's place": (
        lambda proof: msgspec.structs.replace(proof, record=proof.members[0]),
        "is no record",
    ),
    "a record in a configuration's place": (
        lambda proof: msgspec.structs.replace(proof, members=(proof.record,)),
        "is no configuration",
    ),
    "another beginning": (
        lambda proof: msgspec.structs.replace(proof, first=msgspec.structs.replace(proof.first, view=3)),
        "of another log",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_nothing_else_is_proven(what: str) -> None:
    """Goal: no part can be changed. Method: each change of a proof that needs all configurations."""
    log = made()
    change, why = FORGERIES[what]
    problem = problem_of(change(log.prove(24)), log.log_id)
    assert problem is not None
    assert why in problem


def test_another_logs_id_proves_nothing() -> None:
    """Goal: the id is what is trusted. Method: the id of another log."""
    assert problem_of(made().prove(0), "0" * 32) == "it is of another log"


def test_the_path_is_the_trees() -> None:
    """Goal: one tree everywhere. Method: the root that a proof names is that of `tree_levels` over its log."""
    log = made()
    proof = log.prove(3)
    leaves = [leaf_of_entry(entry) for entry in log.entries[: proof.record.head.idx - 1]]
    assert tree_levels(leaves)[-1][0] == proof.record.head.signature.root


def test_the_command_verifies_offline(tmp_path: Path) -> None:
    """Goal: one command for whoever was given a proof. Method: a good one, a changed one, another id, no proof."""
    log, path = made(), tmp_path / "proof.json"
    proof = log.prove(24)

    def verified(content: bytes, log_id: str) -> tuple[int, Any]:
        path.write_bytes(content)
        done = CliRunner().invoke(app, ["verify", str(path), "--log-id", log_id, "--json"])
        return done.exit_code, json.loads(done.stdout) if done.stdout else None

    code, found = verified(msgspec.json.encode(proof), log.log_id)
    assert (code, found["valid"], found["record"]) == (0, True, b"e".hex())
    assert found["transaction_id"] == f"7.{log.entries[-1].idx - 1}"
    assert verified(msgspec.json.encode(of("entry", body=b"x")(proof)), log.log_id)[0] == 1
    assert verified(msgspec.json.encode(proof), "0" * 32)[1]["problem"] == "it is of another log"
    assert verified(b"{}", log.log_id)[0] != 0
