"""The manual page azure-scheduled-events-exporter(1)."""
from datetime import date
def page(version: str, day: date) -> str:
    return ".TH X 1\n"
