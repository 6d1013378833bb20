"""What is handed out for Windows: a self-contained folder (`build`, `folder`), its zip (`archive`), an MSI (`msi`)."""

from typing import Final

from exporter import __version__

NAME: Final = "azure-scheduled-events-exporter"
"""The folder, the program in it, and the service as the service manager knows it."""
PROGRAM: Final = f"{NAME}.exe"
STEM: Final = f"{NAME}-{__version__}-windows-amd64"
"""What the zip and the MSI are called, without their endings."""
