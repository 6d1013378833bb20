"""Where the self-contained build begins."""

import encodings.idna  # noqa: F401  # out of base_library.zip, which is replaced with the rest
import os
import sys

RUNNING = "/proc/self/exe"


def keep_program() -> None:
    """Let whatever is imported later come out of the program that was started, also once its file was replaced.

    A package is upgraded beneath the running agent, which goes on for as long as nothing restarts it. PyInstaller opens
    the archive of modules by its path at each import, and would look in the new one where the old one had a module.
    Without /proc it stays so.
    """
    archive = getattr(sys.modules.get("pyimod02_importers"), "pyz_archive", None)
    if archive is not None and os.path.exists(RUNNING):
        archive._filename = RUNNING  # PyInstaller has no public way; `make -C tests packages` holds it to this


keep_program()
from exporter.cli import main  # noqa: E402  # out of the archive, too

sys.exit(main())
