"""The packages for Windows: a self-contained folder (`build`, `folder`), its zip (`archive`), and an MSI (`msi`)."""

from typing import Final

from exporter import __version__

NAME: Final = "azure-scheduled-events-exporter"
"""The name of the folder, the program, and the service."""
PROGRAM: Final = f"{NAME}.exe"
STEM: Final = f"{NAME}-{__version__}-windows-amd64"
"""The names of the zip and the MSI, without their extensions."""
