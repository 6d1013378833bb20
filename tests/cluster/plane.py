"""A control plane on loopback: etcd, API server, controller manager, scheduler, and kwok instead of kubelets.

Every port requires a certificate of the run's own authority or a random token; the API server has RBAC and its default
admission. Ports are free ones, files are in the folder of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import ssl
from pathlib import Path
from typing import Final, Self

import httpx

from tests.cluster.clients import Client
from tests.cluster.daemons import ClusterError, Daemon, wait_for
from tests.cluster.programs import Programs
from tests.support.certificates import Authority
from tests.support.ports import reserved_port

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 180.0
USERS: Final = {
    "admin": "system:masters",
    "kwok": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}
"""The clients of the API server, and their groups; the API server itself has roles for the last two."""

GRACE: Final = "24h"
"""How long a node may be silent: kwok's report ready once. The loss of a node isn't tested here."""
STAGES: Final = Path(__file__).with_name("kwok.yaml")


class Plane(contextlib.ExitStack):
    """Runs during a `with`. `kubectl` and `helm` are its administrator's."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        super().__init__()
        self._programs, self._folder = programs, folder
        self._authority = Authority("cluster")
        self._tokens = {user: secrets.token_hex(32) for user in USERS}
        self._daemons: list[Daemon] = []
        self.port = 0
        self.kubectl = Client(programs.kubectl, self._kubeconfig_path("admin"), folder)
        self.helm = Client(programs.helm, self._kubeconfig_path("admin"), folder)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def check(self) -> None:
        """Raise ClusterError if one of its programs has ended."""
        for daemon in self._daemons:
            daemon.check()

    def stranger(self) -> Client:
        """A kubectl with the administrator's token that trusts another authority."""
        path = self._folder / "stranger.kubeconfig"
        self._write_kubeconfig(path, "admin", Authority("another").pem)
        return Client(self._programs.kubectl, path, self._folder)

    # -- its programs

    def _start(self) -> None:
        etcd, peers, self.port = (self.enter_context(reserved_port()) for _ in range(3))
        self._write("ca.pem", self._authority.pem)
        for name in ("etcd", "api", "accounts"):
            certificate, key = self._authority.issue(name, HOST, "localhost", "10.96.0.1")
            self._write(f"{name}.pem", certificate)
            self._write(f"{name}.key", key)
        rows = (f'{token},{user},{user},"{USERS[user]}"\n' for user, token in self._tokens.items())
        self._write("tokens.csv", "".join(rows))
        for user in USERS:
            self._write_kubeconfig(self._kubeconfig_path(user), user, self._authority.pem)
        self._run_etcd(etcd, peers)
        self._run_api_server(etcd)
        if not wait_for(self._is_ready, START_SECONDS):
            raise ClusterError(f"the API server was not ready within {START_SECONDS:.0f} s")
        self._run(
            self._programs.kube_controller_manager,
            *("--kubeconfig", self._kubeconfig_path("system:kube-controller-manager")),
            *("--service-account-private-key-file", self._folder / "accounts.key"),
            *("--root-ca-file", self._folder / "ca.pem"),
            *("--use-service-account-credentials", "--leader-elect=false", "--secure-port=0"),
            *("--node-monitor-grace-period", GRACE),
        )
        self._run(
            self._programs.kube_scheduler,
            *("--kubeconfig", self._kubeconfig_path("system:kube-scheduler")),
            *("--leader-elect=false", "--secure-port=0"),
        )
        self._run(
            self._programs.kwok,
            *("--kubeconfig", self._kubeconfig_path("kwok"), "--config", STAGES, "--manage-all-nodes"),
        )

    def _run_etcd(self, port: int, peers: int) -> None:
        own, peer = f"https://{HOST}:{port}", f"http://{HOST}:{peers}"
        self._run(
            self._programs.etcd,
            *("--data-dir", self._folder / "etcd-data", "--listen-client-urls", own, "--advertise-client-urls", own),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
            *("--cert-file", self._folder / "etcd.pem", "--key-file", self._folder / "etcd.key"),
            *("--client-cert-auth", "--trusted-ca-file", self._folder / "ca.pem"),
        )

    def _run_api_server(self, etcd: int) -> None:
        account_keys = self._folder / "accounts"
        self._run(
            self._programs.kube_apiserver,
            *("--etcd-servers", f"https://{HOST}:{etcd}", "--etcd-cafile", self._folder / "ca.pem"),
            *("--etcd-certfile", self._folder / "api.pem", "--etcd-keyfile", self._folder / "api.key"),
            *(
                "--bind-address",
                HOST,
                "--advertise-address",
                HOST,
                "--secure-port",
                str(self.port),
                "--endpoint-reconciler-type",
                "none",
            ),
            *("--tls-cert-file", self._folder / "api.pem", "--tls-private-key-file", self._folder / "api.key"),
            *("--token-auth-file", self._folder / "tokens.csv", "--authorization-mode", "Node,RBAC"),
            "--feature-gates=WatchList=false",  # Debian's etcd 3.4 can't serve it: clients list, and then watch
            *("--anonymous-auth=false", "--allow-privileged", "--service-cluster-ip-range", "10.96.0.0/16"),
            *("--service-account-issuer", "https://cluster.local", "--service-account-key-file", f"{account_keys}.pem"),
            *("--service-account-signing-key-file", f"{account_keys}.key"),
        )

    def _run(self, program: Path, *arguments: str | Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        self._daemons.append(self.enter_context(Daemon([program, *arguments], self._folder, environment)))

    def _is_ready(self) -> bool:
        self.check()
        context = ssl.create_default_context(cadata=self._authority.pem)
        headers = {"Authorization": f"Bearer {self._tokens['admin']}"}
        with contextlib.suppress(httpx.TransportError):
            url = f"https://{HOST}:{self.port}/readyz"
            return httpx.get(url, headers=headers, verify=context, trust_env=False).status_code == httpx.codes.OK
        return False

    # -- its files

    def _kubeconfig_path(self, user: str) -> Path:
        return self._folder / f"{user.replace(':', '-')}.kubeconfig"

    def _write_kubeconfig(self, path: Path, user: str, authority: str) -> None:
        trusted = self._write(f"{path.stem}.ca.pem", authority)
        cluster = {"server": f"https://{HOST}:{self.port}", "certificate-authority": str(trusted)}
        context = {"cluster": "own", "user": user, "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "own",
            "clusters": [{"name": "own", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "own", "context": context}],
        }
        self._write(path.name, json.dumps(config))  # JSON is YAML

    def _write(self, name: str, text: str) -> Path:
        """Write a file that only this user can read: some are keys and tokens."""
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        return path
