"""The container image without an engine: its Containerfile's own steps, and containers of it in namespaces.

The base image is this machine's /usr, read-only and without its /usr/local; there `apt-get install` only makes sure
that the packages are installed here. All else is made by the steps. A container has namespaces of its own for mounts,
host name, processes and network, the user and the environment of the image, no capability, and what its service of the
compose file mounts. It needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

PROGRAMS = ("unshare", "nsenter", "setpriv", "mount", "ip", "tini", "haproxy")
BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_ETC = (
    "passwd",
    "group",
    "login.defs",
    "default",
    "ssl",
    "pip.conf",
    "ld.so.cache",
    "nsswitch.conf",
    "resolv.conf",
)
BASE_FOLDERS = (
    "usr",
    "etc",
    "proc",
    "dev",
    "tmp",
    "run",
    "root",
    "opt",
    "var/lib/dpkg",
    "var/lib/apt/lists",
    "var/tmp",
)
DEVICES = ("null", "zero", "full", "random", "urandom")
STEP_MAX_S, COMMAND_MAX_S, STOP_MAX_S = 400.0, 60.0, 15.0  # the last: stop_grace_period of the compose file
APT_GET = """#!/bin/sh
# The base has what this machine has: an update is none, and to install is to look.
[ "$1" = install ] || exit 0
shift
for package; do case $package in -*) ;; *) dpkg-query --show "$package" >/dev/null || exit 100 ;; esac; done
"""


def missing_programs() -> list[str]:
    """What this machine lacks for containers; empty where they can be made."""
    there = os.environ["PATH"] + ":/usr/sbin:/sbin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=there) is None]
    return lacking if os.geteuid() == 0 else ["root", *lacking]


# ---- the Containerfile ----


class Instruction(NamedTuple):
    """One instruction, with the values of arguments in it."""

    name: str
    value: str


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Containerfile. Arguments have their defaults."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    arguments, found = dict[str, str](), list[Instruction]()
    for line in filter(str.strip, re.sub(r"\\\n\s*", "", lines).splitlines()):
        name, value = line.split(None, 1)
        if name == "ARG":
            argument, _, default = value.partition("=")
            arguments[argument] = default
        else:
            found.append(Instruction(name, re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], value)))
    return found


@dataclass
class Image:
    """What the steps made: a root file system, and how a container of it begins."""

    root: Path
    local: Path  # its /usr/local
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH})
    user: str = "0:0"
    folder: str = "/"  # WORKDIR
    entrypoint: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    stop_signal: signal.Signals = signal.SIGTERM

    def step(self, command: str) -> None:
        """RUN. Raises AssertionError with what it printed."""
        further = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", self.script(["sh", "-c", command], self.environment | further)],
            capture_output=True,
            text=True,
            timeout=STEP_MAX_S,
            check=False,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"

    def copy(self, sources: Iterable[Path], target: str) -> None:
        """COPY. A target that ends with a slash is a folder."""
        there = self.root / target.strip("/")
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, there, symlinks=True, dirs_exist_ok=True)
                continue
            place = there / source.name if target.endswith("/") else there
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)

    def script(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        *,
        mounts: Iterable[str] = (),
        read_only: bool = False,
        user: str = "0:0",
    ) -> str:
        """A script that becomes a command in this root, in the mount namespace that it is started in."""
        root = shlex.quote(str(self.root))
        lines = [
            f"mount --bind {root} {root}",
            f"mount --bind /usr {root}/usr",
            f"mount -o remount,bind,ro {root}/usr",
            f"mount --bind {shlex.quote(str(self.local))} {root}/usr/local",
            f"mount --bind /var/lib/dpkg {root}/var/lib/dpkg",
            f"mount -t proc proc {root}/proc",
            f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
            *(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}" for name in DEVICES),
            f"ln -s /proc/self/fd {root}/dev/fd",
            *mounts,
            *([f"mount -o remount,bind,ro {root}"] if read_only else []),
            f"exec chroot {root} {shlex.join(within(argv, environment, user, self.folder))}",
        ]
        return "\n".join(lines)


def within(argv: list[str], environment: Mapping[str, str], user: str, folder: str = "/") -> list[str]:
    """A command with no environment but this, as this user; one that is not root has no capability."""
    named = ["env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in environment.items())]
    if user == "0:0":
        return [*named, *argv]
    uid, gid = user.split(":")
    rights = ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
    return [*named, "setpriv", f"--reuid={uid}", f"--regid={gid}", *rights, *argv]


def base_image(folder: Path) -> Image:
    """A root with the folders of a Debian system, and nothing of this machine's but /usr and some of /etc."""
    image = Image(folder / "root", folder / "local")
    for name in BASE_FOLDERS:
        (image.root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image.root / name).symlink_to(f"usr/{name}")
    for source in (Path("/etc") / name for name in BASE_ETC):
        if source.is_dir():
            shutil.copytree(source, image.root / "etc" / source.name, symlinks=True)
        elif source.exists():
            shutil.copy(source, image.root / "etc" / source.name)
    programs = image.local / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):  # where the official image has it
        (programs / name).symlink_to("/usr/bin/python3")
    (programs / "apt-get").write_text(APT_GET)
    (programs / "apt-get").chmod(0o755)
    return image


def build(containerfile: Path, context: Path, folder: Path, known: Mapping[str, Image] | None = None) -> Image:
    """Carry out each instruction, in order; the last stage's image. Raises ValueError for one that is not known.

    `known`: images that were built before, by name; one that begins with such an image goes on in its very root.
    """
    stages = dict[str, Image]()
    image = None
    for name, value in instructions(containerfile.read_text()):
        if name == "FROM":
            image = (known or {}).get(value.partition(" AS ")[0]) or base_image(folder / str(len(stages)))
            stages[value.partition(" AS ")[2] or str(len(stages))] = image
            continue
        assert image is not None, "the first instruction is FROM"
        match name:
            case "COPY":
                *options, target = value.split()
                of_stage = options.pop(0).removeprefix("--from=") if options[0].startswith("--from=") else None
                begin = context if of_stage is None else stages[of_stage].root
                found = [path for option in options for path in sorted(begin.glob(option.lstrip("/")))]
                assert found, f"COPY {value}: there is no such file"
                image.copy(found, target)
            case "RUN":
                image.step(value)
            case "ENV":
                for word in shlex.split(value):
                    variable, _, given = word.partition("=")
                    image.environment[variable] = Template(given).substitute(image.environment)
            case "WORKDIR":
                image.folder = value
            case "USER":
                image.user = value
            case "VOLUME":
                (image.root / value.strip("/")).mkdir(parents=True, exist_ok=True)
            case "STOPSIGNAL":
                image.stop_signal = signal.Signals[value]
            case "HEALTHCHECK":
                image.health = json.loads(value.partition("CMD ")[2])
            case "ENTRYPOINT":
                image.entrypoint = json.loads(value)
            case "CMD" | "EXPOSE":  # a service of the compose file has its own
                pass
            case _:
                raise ValueError(f"{name}: not an instruction that is known here")
    assert image is not None
    return image


# ---- containers ----


class Container:
    """One service of the compose file, on a machine that `enter` leads to. `site`: where the compose file is."""

    def __init__(
        self, image: Image, compose: Mapping[str, Any], name: str, site: Path, enter: tuple[str, ...], hosts: str
    ) -> None:
        self._image = image
        self._service = compose["services"][name]
        self.name = name
        self._enter = enter
        self._folder = site / "containers" / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        (self._folder / "hosts").write_text(hosts)
        self._files = {"/etc/hosts": self._folder / "hosts"}
        for part in ("configs", "secrets"):
            for entry in self._service.get(part, ()):
                self._files[entry["target"]] = site / compose[part][entry["source"]]["file"]  # with its owner and mode

    def start(self, argv: list[str] | None = None, user: str | None = None) -> None:
        """Begin as the compose file has it; `argv`: in place of entry point and command."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._begin(argv or [*self._image.entrypoint, *self._service["command"]], user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def once(self, *command: str) -> str:
        """Run another command of the image's entry point to its end, as `podman compose run` does; what it printed."""
        return self._checked(self._begin([*self._image.entrypoint, *command], None), command)

    def execute(self, *command: str, given: bytes = b"") -> str:
        """Run a command beside what runs, as `podman compose exec` does, with this input; what it printed."""
        return self._checked(self._inside(list(command)), command, given)

    def is_healthy(self) -> bool:
        """Whether the image's own health check ends with 0."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} has ended\n{self.log.read_text()}"
        if not self._children():
            return False
        checked = subprocess.run(
            self._inside(self._image.health), capture_output=True, timeout=COMMAND_MAX_S, check=False
        )
        return checked.returncode == 0

    def stop(self) -> int:
        """As `podman stop`: the image's signal to the first process; its exit code. Raises TimeoutExpired."""
        assert self._process is not None
        os.kill(self._first(), self._image.stop_signal)
        return self._process.wait(STOP_MAX_S)

    def kill(self) -> None:
        """End it at once, if it runs: with its first process all others end."""
        if self._process is not None and self._process.poll() is None:
            for child in self._children():
                os.kill(int(child), signal.SIGKILL)
            self._process.wait()

    def _begin(self, argv: list[str], user: str | None) -> list[str]:
        script = self._image.script(
            argv,
            self._image.environment,
            mounts=[f"hostname {self._service.get('hostname', self.name)}", *self._mounts()],
            read_only=self._service["read_only"],
            user=user or self._image.user,
        )
        return [*self._enter, "unshare", "--mount", "--uts", "--pid", "--fork", "sh", "-ec", script]

    def _mounts(self) -> Iterable[str]:
        root = self._image.root
        for volume in self._service.get("volumes", ()):
            _, target = volume.split(":")
            kept = self._folder / "volume"
            if not kept.exists():  # a new volume has owner and mode of the folder that it is mounted over
                shutil.copytree(root / target.strip("/"), kept)
                there = (root / target.strip("/")).stat()
                os.chown(kept, there.st_uid, there.st_gid)
            yield f"mount --bind {kept} {root}{target}"
        for spec in self._service.get("tmpfs", ()):
            target, _, options = spec.partition(":")
            self._place(target).mkdir(parents=True, exist_ok=True)
            yield f"mount -t tmpfs {f'-o {options} ' if options else ''}tmpfs {root}{target}"
        for target, source in self._files.items():
            self._place(target).parent.mkdir(parents=True, exist_ok=True)
            self._place(target).touch()
            yield f"mount --bind {source} {root}{target}; mount -o remount,bind,ro {root}{target}"

    def _place(self, target: str) -> Path:
        """Where a mount point is made."""
        if target.startswith("/usr/local/"):
            return self._image.local / target.removeprefix("/usr/local/")
        return self._image.root / target.strip("/")

    def _inside(self, argv: list[str]) -> list[str]:
        spaces = ["--mount", "--uts", "--pid", "--net", "--root", "--wd"]
        there = within(argv, self._image.environment, self._image.user, self._image.folder)
        return ["nsenter", "--target", str(self._first()), *spaces, *there]

    def _first(self) -> int:
        """The container's first process, by the number that it has outside."""
        (child,) = self._children()
        return int(child)

    def _children(self) -> list[str]:
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()

    def _checked(self, argv: list[str], command: tuple[str, ...], given: bytes = b"") -> str:
        done = subprocess.run(argv, input=given, capture_output=True, timeout=COMMAND_MAX_S, check=False)
        printed, errors = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.returncode}\n{printed}{errors}"
        return printed
