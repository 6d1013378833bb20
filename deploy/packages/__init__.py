"""The deb and the rpm: `make -C deploy deb rpm`. What is in them, what they need of the host, and how they are made.

build        makes a package of the self-contained folder, by nfpm
contents     what goes where, as nfpm's configuration
needs        the C library and the others that the folder needs from the host, measured from its ELF files
program      commands and flags, as argparse knows them
manual       the manual page, made of those
completion   completions for bash, zsh and fish, made of those
scripts/     what runs when a package is installed, upgraded and removed
"""

from __future__ import annotations

from typing import Final

NAME: Final = "azure-scheduled-events-exporter"
HOMEPAGE: Final = f"https://github.com/{NAME}/{NAME}"
