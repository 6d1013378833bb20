"""Completions."""
def bash() -> str: return ""
def zsh() -> str: return ""
def fish() -> str: return ""
