"""Entry point of `python -m deploy.manifests`, which `make generate` calls."""

from __future__ import annotations

from deploy.manifests import ROOT
from deploy.manifests.render import generated


def main() -> None:
    """Write the files that changed, and print their paths."""
    for path, text in generated():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
