"""The image of a whole participant, without an engine: its steps, and one container of it in namespaces."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.image import Container, build, missing_programs
from tests.integration.test_image import DEPLOY, ROOT, built_image
from tests.waiting import eventually

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.demo.yml").read_text())
# a network of its own, with nothing but a loopback: what the host's is to a container with `network_mode: host`
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")
HEALTHY_MAX_S = 120.0

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


async def test_one_container_is_a_whole_participant(servers_folder: Path) -> None:
    """Goal: the image starts, is healthy once it serves, notarises, and stops in order; its state outlives it. Method:
    both files' steps; the compose file's service in namespaces, read-only and without a right; twice."""
    if lacking := missing_programs():
        pytest.skip(f"NO CONTAINER WAS TRIED: this needs {', '.join(lacking)}")
    folder = servers_folder / "whole"
    folder.mkdir()
    base = await asyncio.to_thread(built_image, folder)
    known = {"notary:0.2.0": base}
    image = await asyncio.to_thread(build, DEPLOY / "Containerfile.demo", ROOT, folder / "demo", known)
    container = Container(image, COMPOSE, "demo", folder / "site", ALONE, "127.0.0.1 localhost\n")
    try:
        for _ in range(2):
            container.start()
            await eventually(partial(asyncio.to_thread, container.is_healthy), HEALTHY_MAX_S)
            assert "STATE_CONFLICT" in await asyncio.to_thread(container.execute, "notary", "try")
            status = json.loads(await asyncio.to_thread(container.execute, "notary", "status", "--json"))
            assert sorted(status["replicas"]) == ["r1", "r2", "r3"]
            assert await asyncio.to_thread(container.stop) == 0
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error}\n{container.log.read_text()[-3000:]}") from error
    finally:
        container.kill()
        shutil.rmtree(folder, ignore_errors=True)
