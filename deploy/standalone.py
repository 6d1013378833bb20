"""The entry point of the self-contained build."""

import encodings.idna  # noqa: F401  # from base_library.zip, which an upgrade replaces
import os
import sys

RUNNING = "/proc/self/exe"


def keep_program() -> None:
    """Import later modules from the started program, even after its file was replaced.

    An upgrade replaces the files of the running agent, which continues until it is restarted. PyInstaller opens the
    module archive by its path at each import, and would read the new archive at the old positions. Without /proc,
    nothing is changed.
    """
    archive = getattr(sys.modules.get("pyimod02_importers"), "pyz_archive", None)
    if archive is not None and os.path.exists(RUNNING):
        archive._filename = RUNNING  # no public API; tested by `make -C tests packages`


keep_program()
from exporter.cli import main  # noqa: E402  # also from the archive

sys.exit(main())
