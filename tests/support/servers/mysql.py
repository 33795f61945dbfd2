"""Oracle's MySQL as a container."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path

import docker
from docker.errors import DockerException, ImageNotFound
from docker.types import Mount
from testcontainers.community.mysql import MySqlContainer

from tests.support.servers.base import PASSWORD, USER, ServerMissing, wait_until
from tests.support.servers.folders import Folder
from tests.support.servers.mysqllike import MySQLLike
from tests.support.servers.ports import free_port
from tests.support.servers.reaper import Reaper

IMAGE_VARIABLE = "TICKETS_MYSQL_IMAGE"
_DATA = "/var/lib/mysql"
# An image may make the others with the data only, which may be a copy.
_FOLDERS = {"data": _DATA, "run": "/var/run/mysqld", "files": "/var/lib/mysql-files"}
_REMOVE = (
    "import sys, docker\ndocker.from_env().containers.get(sys.argv[1]).remove(force=True, v=True)"
)


class _Container(MySqlContainer):
    def _connect(self) -> None:
        """Leave the waiting to `wait_until`, which asks the server instead of reading its log once a second."""


class MySQL(MySQLLike):
    """A MySQL server with its stock settings, durable, and small."""

    kind = "mysql"

    def __init__(
        self, reaper: Reaper, options: Sequence[str] = (), *, is_first: bool = False
    ) -> None:
        image = require_image()
        self._reaper = reaper
        self._is_first = is_first
        # Known before there is one, so that it is removed whenever these tests are killed.
        self._name = f"tickets-{uuid.uuid4().hex[:12]}"
        self._order = 0
        self._started = False
        self._frozen = False
        self._copy: Folder | None = None
        # Docker would choose another one after each restart.
        self.port = free_port()
        self._container = _Container(
            image, username=USER, password=PASSWORD, root_password=PASSWORD, dbname=USER
        ).with_name(self._name)
        self._folder = _folder(reaper)
        # Not every image has a volume for its data, which another container can copy.
        mounts = [Mount(_DATA, None)]
        if self._folder is not None:
            mounts = [
                Mount(target, str(self._folder.path / name), type="bind")
                for name, target in _FOLDERS.items()
            ]
        started_with: dict[str, object] = {"mounts": mounts}
        if _is_local():
            # Docker's proxy would go on listening for a server that was killed, and say nothing.
            started_with["network_mode"] = "host"
            self._container.ports.clear()
            options = [f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-mysqlx", *options]
        else:
            self._container.with_bind_ports(3306, self.port)
        self._container.with_kwargs(**started_with).with_command(
            [
                "--skip-log-bin",
                "--innodb-buffer-pool-size=32M",
                # Most of what is copied when a disk is to be full, which keeps the real disk busy.
                "--innodb-redo-log-capacity=8M",
                *options,
            ]
        )

    @property
    def inner_address(self) -> tuple[str, int]:
        if _is_local():
            return self.host, self.port
        engine = self._container.get_docker_client()
        return engine.bridge_ip(self._container.get_container_id()), 3306

    @property
    def alive(self) -> bool:
        return self._started and self._status() == "running"

    @property
    def frozen(self) -> bool:
        return self._frozen

    def start(self) -> None:
        if self._started:
            self._container.get_wrapped_container().start()
        else:
            self._order = self._reaper.promise([sys.executable, "-c", _REMOVE, self._name])
            if self._folder is not None and not self._is_first:
                _copy_first(self._reaper, self._folder.path / "data")
            self._container.start()
            self._started = True
        self.host = "127.0.0.1" if _is_local() else self._container.get_container_host_ip()
        wait_until(self.answers, self._death)

    def stop(self) -> None:
        self._container.get_wrapped_container().stop(timeout=60)

    def kill(self) -> None:
        container = self._container.get_wrapped_container()
        container.kill()
        container.wait()
        self._frozen = False

    def freeze(self) -> None:
        # The engine's own way to pause is refused now and then, by a kernel that could not freeze all.
        self._container.get_wrapped_container().kill(signal="SIGSTOP")
        self._frozen = True

    def thaw(self) -> None:
        self._container.get_wrapped_container().kill(signal="SIGCONT")
        self._frozen = False

    @property
    def data(self) -> Path | None:
        mounts = self._container.get_wrapped_container().attrs["Mounts"]
        (folder,) = (Path(mount["Source"]) for mount in mounts if mount["Destination"] == _DATA)
        return folder if _is_local() and os.access(folder, os.W_OK) else None

    def promise(self, command: Sequence[str]) -> int:
        return self._reaper.promise(command)

    def withdraw(self, order: int) -> None:
        self._reaper.withdraw(order)

    def put(self, files: Sequence[Path], folder: str) -> None:
        """Copy files of this machine into a folder of the container, readable for all."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in files:
                entry = tarfile.TarInfo(file.name)
                entry.size, entry.mode = file.stat().st_size, 0o644
                archive.addfile(entry, io.BytesIO(file.read_bytes()))
        self._container.get_wrapped_container().put_archive(folder, packed.getvalue())

    def copy_data(self) -> None:
        self._in_a_container(f"rm -rf /copy/* && cp -a {_DATA}/. /copy/")

    def restore_data(self) -> None:
        self._in_a_container(f"rm -rf {_DATA}/* && cp -a /copy/. {_DATA}/")

    def _in_a_container(self, script: str) -> None:
        """Run a script in another container that has this one's volumes, and a folder for a copy."""
        if self._copy is None:
            self._copy = Folder(self._reaper)
        with contextlib.closing(docker.from_env()) as client:
            client.containers.run(
                require_image(),
                ["-c", script],
                entrypoint="sh",
                user="root",
                volumes_from=[self._container.get_container_id()],
                volumes={str(self._copy.path): {"bind": "/copy", "mode": "rw"}},
                remove=True,
            )

    def close(self) -> None:
        if self._copy is not None:
            self._copy.remove()
            self._copy = None
        if not self._started:
            return
        self._container.stop()
        if self._folder is not None:
            self._folder.remove()
        self._started = False
        self._reaper.withdraw(self._order)

    def _status(self) -> str:
        container = self._container.get_wrapped_container()
        container.reload()
        return str(container.status)

    def _death(self) -> str | None:
        if self.alive:
            return None
        out, err = self._container.get_logs()
        return f"{self.kind} ended while starting: {(out + err).decode()[-2000:]}"


def _folder(reaper: Reaper) -> Folder | None:
    """A folder where the other servers have theirs; None where this user could not remove it again."""
    if not _is_local() or os.geteuid() != 0:
        return None
    folder = Folder(reaper)
    for name in _FOLDERS:
        (folder.path / name).mkdir()
        # The server is another user.
        (folder.path / name).chmod(0o777)
    folder.path.chmod(0o755)
    return folder


def _copy_first(reaper: Reaper, data: Path) -> None:
    """Copy the data of a new server where several workers share it: to make it anew takes seconds."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return
    shared = Path(tempfile.gettempdir()) / f"tickets-mysql-{run}"
    lock = shared.with_suffix(".lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not shared.exists():
            reaper.promise(["rm", "-rf", str(shared), str(lock)])
            first = MySQL(reaper, is_first=True)
            first.start()
            first.stop()
            assert first.data is not None
            # the next server is another one, with a UUID of its own
            (first.data / "auto.cnf").unlink()
            first.data.rename(shared)
            first.close()
        subprocess.run(["cp", "-a", f"{shared}/.", str(data)], check=True)


def _is_local() -> bool:
    """Whether the engine is this machine's own, so that both share network and files."""
    return sys.platform == "linux" and os.environ.get("DOCKER_HOST", "unix:").startswith("unix:")


def require_image() -> str:
    """Return the image to start MySQL from, fetched if need be.

    Raises:
        ServerMissing: There is no Docker engine, or it cannot get the image.
    """
    image = os.environ.get(IMAGE_VARIABLE, "mysql:8.4")
    client = _engine()
    if client is None:
        raise ServerMissing(
            "MySQL needs a Docker engine that this user may use "
            "(Debian: apt-get install docker.io), or run with --servers"
        )
    try:
        client.images.get(image)
    except ImageNotFound:
        _pull(client, image)
    finally:
        client.close()
    return image


def _engine() -> docker.DockerClient | None:
    # The client leaves the socket open on which nobody answered.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env()
        except DockerException:
            return None
        finally:
            gc.collect()


def _pull(client: docker.DockerClient, image: str) -> None:
    try:
        client.images.pull(image)
    except DockerException as error:
        raise ServerMissing(
            f"`docker pull {image}` failed: name an image that has Oracle's MySQL in "
            f"{IMAGE_VARIABLE}, or run with --servers"
        ) from error
