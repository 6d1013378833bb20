"""Where the self-contained build begins."""

import sys

from exporter.cli import main

sys.exit(main())
