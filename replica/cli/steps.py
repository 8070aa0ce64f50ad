"""Runs `notary` commands one after the other, each in a process of its own, as an operator would."""

from __future__ import annotations

import asyncio

from replica.local.process import ServerFailed
from replica.notary.own_process import module_argv

COMMAND_MAX_S = 300.0


async def notary(*words: str) -> str:
    """The output of a command. Raises ServerFailed with its error output, unless it succeeded in time."""
    process = await asyncio.create_subprocess_exec(
        *module_argv("replica.cli", *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(COMMAND_MAX_S):
            printed, complaints = await process.communicate()
    except TimeoutError:
        raise ServerFailed(f"notary {' '.join(words)} took more than {COMMAND_MAX_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    if process.returncode:
        said = f"{printed.decode()[-800:]}\n{complaints.decode()[-800:]}".strip()
        raise ServerFailed(f"notary {' '.join(words)} ended with code {process.returncode}: {said}")
    return printed.decode()
