"""One target under atheris, in a separate process: `python -m tests.fuzz.one TARGET [libFuzzer's arguments]`."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # only there where fuzzing is wanted


def main() -> None:
    target = sys.argv[1]
    with atheris.instrument_imports(include=["exporter", "h11"]):
        from tests.fuzz.seeds import TARGETS  # instrumented as it is imported
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
