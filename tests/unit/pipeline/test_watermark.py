"""The audit's watermark: what it names was verified, or an error; never something else."""

from __future__ import annotations

from pathlib import Path

from pipeline.audit.watermark import Watermark, load_watermark, save_watermark
from replica.notary.errors import ConfigError

WATERMARK = Watermark(topic_id="topic", offset=1_234, digest="ab" * 32, ledger_offset=567, verified_us=1_700_000_000)


def test_no_flipped_bit_moves_the_watermark(tmp_path: Path) -> None:
    """Goal: a rotten file makes no audit skip what nobody verified. Method: flip each of its bits, one by one."""
    path = tmp_path / "w.json"
    save_watermark(path, WATERMARK)
    assert load_watermark(path) == WATERMARK
    raw, refused = path.read_bytes(), 0
    for number in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[number // 8] ^= 1 << number % 8
        path.write_bytes(damaged)
        try:
            assert load_watermark(path) == WATERMARK, f"bit {number}"
        except ConfigError:
            refused += 1
    assert refused > 7 * len(raw)  # what is left is space between the fields
