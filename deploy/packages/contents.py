"""The contents of the packages as nfpm's configuration, for both deb and rpm.

The program is in /opt, because it includes its dependencies except the C library. All other files are in the places of
Debian and RHEL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from packaging.version import Version

from deploy.packages import HOMEPAGE, NAME
from deploy.packages.needs import Needs

Format = Literal["deb", "rpm"]

ROOT: Final = Path(__file__).parents[2]
PROGRAM_FOLDER: Final = f"/opt/{NAME}"
COMMAND: Final = f"/usr/bin/{NAME}"
SETTINGS: Final = f"/etc/{NAME}"
DOCUMENTS: Final = f"/usr/share/doc/{NAME}"
VERSION_FILE: Final = f"{PROGRAM_FOLDER}/package-version"
"""The installed version, which %pre compares, because scripts of rpm can't query rpm."""
MAINTAINER: Final = f"{NAME} maintainers <{NAME}@users.noreply.github.com>"
SUMMARY: Final = "Azure Scheduled Events as metrics, logs, and messages"
DESCRIPTION: Final = f"""{SUMMARY}
An agent for Azure VMs that polls Scheduled Events once a second and publishes
every change as Prometheus metrics, OpenTelemetry logs, and Event Hubs
messages, from a durable outbox. It can approve events early, under strict
rules.
.
It includes Python and all libraries except the C library."""
SCRIPTS: Final[Mapping[Format, Mapping[str, str]]] = {
    "deb": {"preinstall": "preinst", "postinstall": "postinst", "preremove": "prerm", "postremove": "postrm"},
    "rpm": {"preinstall": "pre", "postinstall": "post", "preremove": "preun", "postremove": "postun"},
}
"""The name of each maintainer script in each format, by nfpm's name. Its file is `scripts/FORMAT-NAME.sh`."""
UNIT_FOLDERS: Final[Mapping[Format, str]] = {"deb": "/lib/systemd/system", "rpm": "/usr/lib/systemd/system"}
ZSH_FOLDERS: Final[Mapping[Format, str]] = {
    "deb": "/usr/share/zsh/vendor-completions",
    "rpm": "/usr/share/zsh/site-functions",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, link, or directory of a package. `source` is a path on this machine, or the target of a link."""

    target: str
    source: str = ""
    kind: str = ""
    mode: int = 0o644

    def as_nfpm(self) -> dict[str, Any]:
        """Return the entry for nfpm's `contents`."""
        entry: dict[str, Any] = {"dst": self.target}
        if self.source:
            entry["src"] = self.source
        if self.kind:
            entry["type"] = self.kind
        if self.kind not in ("tree", "symlink"):  # the files of a tree keep their modes
            entry["file_info"] = {"mode": self.mode}
        return entry


def package_version(version: str) -> str:
    """Return a Python version as deb and rpm sort it: `1.0rc1` becomes `1.0~rc1`, which is before `1.0`."""
    read = Version(version)
    text = read.base_version
    if read.pre:
        text += f"~{read.pre[0]}{read.pre[1]}"
    if read.dev is not None:
        text += f"~dev{read.dev}"
    if read.post is not None:
        text += f"+post{read.post}"
    return text


def file_name(form: Format, version: str, architecture: str) -> str:
    """Return the file name of the package, in the form of each format's own tools."""
    if form == "deb":
        return f"{NAME}_{version}_{architecture}.deb"
    return f"{NAME}-{version}-1.{ {'amd64': 'x86_64', 'arm64': 'aarch64'}[architecture] }.rpm"


def entries(form: Format, folder: Path, made: Path) -> Iterator[Entry]:
    """Return all entries of a package. `folder` is the self-contained program; `made` has the generated files."""
    systemd = ROOT / "deploy" / "systemd"
    document = "doc" if form == "rpm" else ""  # nfpm omits entries of this kind from a deb
    yield Entry(PROGRAM_FOLDER, str(folder), "tree")
    yield Entry(VERSION_FILE, str(made / "package-version"))
    yield Entry(COMMAND, f"{PROGRAM_FOLDER}/{NAME}", "symlink")
    yield Entry(f"{UNIT_FOLDERS[form]}/{NAME}.service", str(systemd / f"{NAME}.service"))
    yield Entry(SETTINGS, kind="dir", mode=0o755)
    yield Entry(f"{SETTINGS}/config.toml", str(systemd / "config.toml"), "config|noreplace")
    yield Entry(DOCUMENTS, kind="dir", mode=0o755)
    yield Entry(f"{DOCUMENTS}/examples", kind="dir", mode=0o755)
    for example in ("config.toml", "event-hubs.conf", "network.conf"):
        yield Entry(f"{DOCUMENTS}/examples/{example}", str(systemd / example), document)
    yield Entry(f"{DOCUMENTS}/examples/handshake", kind="dir", mode=0o755)
    for path in sorted((systemd / "examples").iterdir()):
        yield Entry(f"{DOCUMENTS}/examples/handshake/{path.name}", str(path), document)
    yield Entry(f"/usr/share/man/man1/{NAME}.1.gz", str(made / f"{NAME}.1.gz"), document)
    yield Entry(f"/usr/share/bash-completion/completions/{NAME}", str(made / "bash"))
    yield Entry(f"{ZSH_FOLDERS[form]}/_{NAME}", str(made / "zsh"))
    yield Entry(f"/usr/share/fish/vendor_completions.d/{NAME}.fish", str(made / "fish"))
    if form == "deb":
        yield Entry(f"{DOCUMENTS}/changelog.gz", str(made / "changelog.gz"))
        yield Entry(f"{DOCUMENTS}/copyright", str(made / "copyright"))
        yield Entry(f"/usr/share/lintian/overrides/{NAME}", str(ROOT / "deploy" / "packages" / "lintian-overrides"))
    else:
        yield Entry(f"{DOCUMENTS}/CHANGELOG.md", str(ROOT / "CHANGELOG.md"), document)
        yield Entry(f"/usr/share/licenses/{NAME}/LICENSE", str(ROOT / "LICENSE"), "license")


def configuration(
    form: Format, version: str, needs: Needs, folder: Path, made: Path, *, mtime: str, quick: bool = False
) -> dict[str, Any]:
    """Return nfpm's configuration. `version` is the package's; `mtime` is the time of every file, as in RFC 3339.

    With `quick`, packing takes a few seconds and the package is a third larger.
    """
    compression = "gzip" if quick else "xz"  # dpkg in Debian 11 doesn't support zstd
    return {
        "name": NAME,
        "arch": needs.architecture,
        "platform": "linux",
        "version": version,
        "version_schema": "none",  # `package_version` has converted it
        "release": "" if form == "deb" else "1",
        "section": "admin" if form == "deb" else "",
        "priority": "optional",
        "maintainer": MAINTAINER,
        "description": DESCRIPTION if form == "deb" else DESCRIPTION.replace("\n.\n", "\n\n"),
        "vendor": NAME,
        "homepage": HOMEPAGE,
        "license": "MIT",
        "mtime": mtime,
        "umask": 0o022,
        "disable_globbing": True,
        "depends": needs.debian() if form == "deb" else needs.rpm(),
        "contents": [entry.as_nfpm() for entry in entries(form, folder, made)],
        "scripts": {key: str(made / name) for key, name in SCRIPTS[form].items()},
        "deb": {"compression": compression},
        "rpm": {
            "compression": compression,
            "summary": SUMMARY,
            "buildhost": "localhost",
            "group": "System Environment/Daemons",
        },
    }
