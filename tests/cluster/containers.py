"""A pod's containers as processes: command, environment, and mounts from the objects in the API server.

kwok starts no container. Each path at which the pod mounts a volume becomes a directory of this run: it is replaced in
commands, variables, and mounted files. Nothing is read from this checkout, except the agent itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.clients import Client, Json
from tests.cluster.daemons import ClusterError

STOP_SECONDS: Final = 30.0
TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The directory from which kubectl reads the token in a pod."""


class Mounts:
    """The directories of this run for a pod's mount paths."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self.directories = dict(directories)
        paths = sorted(self.directories, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, paths))})(?![\w.-])")

    def outside(self, text: str) -> str:
        """Return the text with the directories of this run in place of mount paths."""
        return self._pattern.sub(lambda found: str(self.directories[found[1]]), text)

    def inside(self, text: str) -> str:
        """Return the text with mount paths in place of the directories of this run."""
        for path, directory in self.directories.items():
            text = text.replace(str(directory), path)
        return text


class Line(NamedTuple):
    """A line of output, and the time at which it was read, in seconds since the epoch."""

    time: float
    text: str


class Process:
    """A container's process in a separate session, with all its lines in `lines`."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], folder: Path, lines: list[Line]
    ) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        self._lines = lines
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(Line(time.time(), line.rstrip()))

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it with all its child processes, as the end of a container does.

        They are all of its session: a process group isn't enough, because `timeout` makes its own.
        """
        end = time.monotonic() + STOP_SECONDS
        while members := list(_session(self._process.pid)):
            if time.monotonic() > end:
                raise ClusterError(f"still running after SIGKILL: {members}")
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _session(session: int) -> Iterator[int]:
    """Yield the processes of a session that haven't ended."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own = (
                (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]
            )
        except OSError:
            continue  # it has ended meanwhile
        if int(own) == session and state not in "XZ":
            yield int(path.name)


class Pod:
    """A pod of the API server, with its volumes as directories: hostPath below `disk`, others below `folder`."""

    def __init__(self, kubectl: Client, pod: Json, disk: Path, folder: Path) -> None:
        self._kubectl, self.object = kubectl, pod
        self.uid = str(pod["metadata"]["uid"])
        self._namespace = str(pod["metadata"]["namespace"])
        self._folder = folder / self.uid
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        directories = {name: self._directory(volume, disk) for name, volume in volumes.items()}
        mounted = sorted({(one["mountPath"], one["name"]) for part in self._parts() for one in part["volumeMounts"]})
        if len({path for path, _ in mounted}) < len(mounted):
            raise ClusterError("two containers mount different volumes at one path")
        self.mounts = Mounts({path: directories[name] for path, name in mounted})
        in_memory = {name for name, volume in volumes.items() if volume.get("emptyDir", {}).get("medium") == "Memory"}
        self.memory = [directories[name] for name in sorted(in_memory)]
        for name, volume in volumes.items():
            self._fill(volume, directories[name])

    def _parts(self) -> list[Json]:
        return [*self.object["spec"]["initContainers"], *self.object["spec"]["containers"]]

    def container(self, name: str) -> Json:
        """Return the container of this name. Raises ClusterError if there is none."""
        for container in self.object["spec"]["containers"]:
            if container["name"] == name:
                found: Json = container
                return found
        raise ClusterError(f"the pod has no container {name}")

    def command(self, name: str, entrypoint: Sequence[str] = ()) -> list[str]:
        """Return a container's command line; `entrypoint` is the image's."""
        container = self.container(name)
        words = [*container.get("command", entrypoint), *container.get("args", [])]
        return [self.mounts.outside(word) for word in words]

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables that the pod sets for a container, without those of the image."""
        variables = self.container(name)["env"]
        return {one["name"]: self.mounts.outside(self._value(one)) for one in variables}

    def _value(self, variable: Json) -> str:
        if "valueFrom" not in variable:
            return str(variable.get("value", ""))
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        value: object = self.object
        for key in path.split("."):
            value = value[key] if isinstance(value, dict) else None
        return str(value)

    # -- volumes

    def _directory(self, volume: Json, disk: Path) -> Path:
        if "hostPath" in volume:
            return disk / str(volume["hostPath"]["path"]).lstrip("/")
        return self._folder / str(volume["name"])

    def _fill(self, volume: Json, directory: Path) -> None:
        """Create a volume's directory, and write what the kubelet writes there."""
        directory.mkdir(parents=True, exist_ok=True)
        kind = next(key for key in volume if key != "name")
        match kind:
            case "hostPath" | "emptyDir":
                pass
            case "configMap":
                self._write(directory, volume[kind], int(volume[kind]["defaultMode"]))
            case "projected":
                for source in volume[kind]["sources"]:
                    if "serviceAccountToken" in source:
                        _write(directory / source["serviceAccountToken"]["path"], self._token(), 0o600)
                    else:
                        self._write(directory, source["configMap"], 0o644)
            case _:
                raise ClusterError(f"a volume of the kind {kind} isn't supported here")

    def _write(self, directory: Path, source: Json, mode: int) -> None:
        """Write the content of a ConfigMap, or of its chosen items."""
        namespace = ("--namespace", self._namespace)
        found = self._kubectl("get", "configmap", source["name"], *namespace, "-o", "json")
        if not found.good and not source.get("optional"):
            raise ClusterError(found.refusal)
        data = json.loads(found.out).get("data", {}) if found.good else {}
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            _write(directory / item["path"], self.mounts.outside(data[item["key"]]), mode)

    def _token(self) -> str:
        """Return a token as the kubelet gets it: bound to the pod, and so to its node."""
        name = self.object["metadata"]["name"]
        bound = ("--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", self.uid)
        account = self.object["spec"]["serviceAccountName"]
        return self._kubectl.must("create", "token", account, "--namespace", self._namespace, *bound).strip()

    def remove(self) -> None:
        """Remove what ends with the pod: all but its hostPath volumes."""
        shutil.rmtree(self._folder)


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
