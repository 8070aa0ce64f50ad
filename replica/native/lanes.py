"""Eight Ed25519 equations at a time: Intel's Cryptography Primitives Library (crypto_mb), for processors with AVX-512
IFMA.

Two Python packages deliver it, without any Python code: `ipp-crypto` has the library, and `intel-cmplr-lib-rt` has the
libraries that it is linked with. There are no lanes if a package is missing, if the processor lacks the instructions,
or if the library fails its self-test on good and bad signatures. Everything works without lanes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from nacl.signing import SigningKey

LANES = 8
Check = tuple[bytes, bytes, bytes]
"""Public key, message, signature: 32, any number and 64 bytes."""

_LINKED_WITH = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")
_LIBRARY = "libcrypto_mb.so.13"
_Pointers = ctypes.c_char_p * LANES
_Sizes = ctypes.c_uint32 * LANES
_SCALAR_AT = 32
_STATUS_BITS = 4


class Lanes:
    """The library, loaded. Use `load_lanes`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._verify = library.mbx_ed25519_verify_mb8
        self._verify.restype = ctypes.c_uint32
        self._verify.argtypes = (_Pointers, _Pointers, _Pointers, _Sizes, _Pointers)

    def hold(self, checks: Sequence[Check]) -> list[bool]:
        """Whether the equation holds, for each of at most eight checks. The caller must check the lengths. Fewer than
        eight take the time of eight."""
        keys, messages, signatures = zip(*checks, strict=True)
        status = self._verify(
            _Pointers(*signatures),
            _Pointers(*[signature[_SCALAR_AT:] for signature in signatures]),
            _Pointers(*messages),
            _Sizes(*map(len, messages)),
            _Pointers(*keys),
        )
        return [not status >> _STATUS_BITS * lane & 0xF for lane in range(len(checks))]


def load_lanes() -> Lanes | None:
    """The lanes of this machine, if it has any."""
    try:
        for name in _LINKED_WITH:
            ctypes.CDLL(_path_of("intel-cmplr-lib-rt", name))  # not global: other libraries do not see its functions
        library = ctypes.CDLL(_path_of("ipp-crypto", _LIBRARY))
        library.mbx_is_crypto_mb_applicable.argtypes = (ctypes.c_uint64,)
        if not library.mbx_is_crypto_mb_applicable(0):  # 0: of this processor
            return None
        lanes = Lanes(library)
    except (PackageNotFoundError, FileNotFoundError, OSError, AttributeError):
        return None
    return lanes if _tells_good_from_bad(lanes) else None


def _path_of(package: str, name: str) -> str:
    """The path of a package's file. Raises PackageNotFoundError, FileNotFoundError."""
    for file in distribution(package).files or ():
        if file.name == name:
            return str(Path(str(file.locate())).resolve())
    raise FileNotFoundError(name)


def _tells_good_from_bad(lanes: Lanes) -> bool:
    """The self-test: a bad signature in every lane in turn, among good ones; and fewer than eight signatures."""
    key = SigningKey(bytes(32))
    good = [(bytes(key.verify_key), bytes(lane), key.sign(bytes(lane)).signature) for lane in range(LANES)]
    bad = [(public, message + b"!", signature) for public, message, signature in good]
    mixed = [[bad[lane] if lane == at else good[lane] for lane in range(LANES)] for at in range(LANES)]
    expected = [[lane != at for lane in range(LANES)] for at in range(LANES)]
    return (
        lanes.hold(good) == [True] * LANES and lanes.hold(good[:1]) == [True] and [*map(lanes.hold, mixed)] == expected
    )
