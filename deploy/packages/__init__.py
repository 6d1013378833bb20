"""The deb and the rpm (`make -C deploy deb rpm`): contents, dependencies, and build.

build        builds a package from the self-contained folder, with nfpm
contents     the files of the packages, as nfpm's configuration
needs        the libraries that the folder needs from the host, read from its ELF files
program      the commands and flags, read from argparse
manual       the manual page
completion   completions for bash, zsh, and fish
scripts/     the scripts that run when a package is installed, upgraded, and removed
"""

from __future__ import annotations

from typing import Final

NAME: Final = "azure-scheduled-events-exporter"
HOMEPAGE: Final = f"https://github.com/{NAME}/{NAME}"
