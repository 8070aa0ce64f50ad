"""Log lines of cores and front ends: JSON, one a line, and never the reason why a process ends."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from structlog.testing import capture_logs

from replica.telemetry.library_lines import LibraryLines
from replica.telemetry.standard_output import LogLines

CORE = "from replica.telemetry.log_lines import set_up_logging; set_up_logging(replica='r1')"
FRONT_END = "from replica.telemetry.log_lines import set_up_logging; set_up_logging('info', replica='r1')"
SPEAK = "import structlog; log = structlog.get_logger(); log.critical('one', detail='ä'); log.info('two'); print('x')"


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
def test_lines_are_json_in_order(set_up: str) -> None:
    """Goal: each line stands for itself. Method: a process that logs twice; parse what it wrote."""
    code = f"{set_up}; {SPEAK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, _ = done.stdout.splitlines()
    assert (json.loads(first)["event"], json.loads(first)["detail"]) == ("one", "ä")
    assert (json.loads(second)["event"], json.loads(second)["replica"]) == ("two", "r1")


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
def test_a_full_disk_takes_lines_and_nothing_else(set_up: str, tmp_path: Path) -> None:
    """Goal: no step-down fails for want of a log line. Method: a process whose standard output is always full."""
    code = (
        f"{set_up}; {SPEAK.replace('print', 'str')}; from pathlib import Path; Path({str(tmp_path / 'on')!r}).touch()"
    )
    with Path("/dev/full").open("w") as full:
        subprocess.run([sys.executable, "-c", code], stdout=full, check=True)
    assert (tmp_path / "on").exists()


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_stands_still_stops_nobody(set_up: str, kind: str, tmp_path: Path) -> None:
    """Goal: a hanging container runtime or journal costs lines, not service. Method: a process whose output is full
    logs and warns; then its output is read, and its last line says how many are missing."""
    code = f"""{set_up}
import structlog, sys, warnings
from pathlib import Path
log = structlog.get_logger()
for number in range(5_000):
    log.info("many", number=number, text="x" * 200)
    print("a warning" * 20, file=sys.stderr)
Path({str(tmp_path / "through")!r}).touch()
sys.stdin.readline()
log.info("last")
"""
    ours, theirs = socket.socketpair() if kind == "socket" else (None, None)
    out = subprocess.PIPE if theirs is None else theirs
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=out, stderr=out) as process:
        for _ in range(600):
            if (tmp_path / "through").exists():
                break
            sleep(0.05)
        assert (tmp_path / "through").exists(), "it waits for its reader"
        source = process.stdout if ours is None else ours.makefile("rb")
        assert source is not None and process.stdin is not None
        lines = [source.readline() for _ in range(100)]
        process.stdin.write(b"\n")
        process.stdin.close()
        if theirs is not None:
            theirs.close()
        lines += source.readlines()
        source.close()
    if ours is not None:
        ours.close()
    *_, last = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert last["event"] == "last"
    assert 1_000 < last["lines_dropped"] < 5_000
    first = [json.loads(line)["number"] for line in lines[:100] if line.startswith(b"{")]
    assert first == list(range(len(first)))


def test_a_line_that_went_out_in_part_is_ended_before_the_next() -> None:
    """Goal: no line is torn. Method: lines longer than what a pipe takes at once, read to the end of each."""
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, 4_096)
    lines = LogLines(sink)
    lines.write("a" * 6_000 + "\n")
    lines.write("lost\n")
    assert lines.dropped == 1
    assert os.read(source, 8_192) == b"a" * 4_096
    lines.write("b\n")
    assert os.read(source, 8_192) == b"a" * 1_904 + b"\nb\n"
    assert os.get_blocking(sink)  # what others share is as it was
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize("set_up", [CORE, FRONT_END], ids=["core", "front end"])
def test_what_libraries_log_are_lines_of_ours(set_up: str) -> None:
    """Goal: a stranger cannot fill the log through a library. Method: errors with tracebacks by the thousand, from the
    standard library's loggers and from an event loop's callback; count lines and look into them."""
    code = f"""{set_up}
import asyncio, logging
async def main():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0.01)
asyncio.run(main())
for _ in range(2000):
    logging.getLogger("some.library").error("bad %s", "x" * 100_000, exc_info=ValueError("y" * 100_000))
logging.getLogger("other").warning("%d of", "three")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert {line["event"] for line in lines} == {"library"}
    assert (lines[0]["library"], lines[0]["level"]) == ("asyncio", "error")
    assert "ZeroDivisionError" in lines[0]["exception"]
    assert len(lines) <= 2 * 20
    assert all(len(line) < 6_000 for line in done.stdout.splitlines())


def test_withheld_lines_are_counted() -> None:
    """Goal: nothing is left out unsaid. Method: many in a second of a clock of ours, one in the next."""
    now_s = [5.0]
    lines = LibraryLines(lambda: now_s[0])
    record = logging.LogRecord("l", logging.DEBUG, "", 0, "text", None, None)
    with capture_logs() as told:
        for _ in range(10):
            lines.emit(record)
        now_s[0] = 6.0
        lines.emit(record)
    assert [line["withheld"] for line in told] == [0, 0, 8]
