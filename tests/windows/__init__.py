"""Code for Windows: data structures are tested on every system, system calls on Windows."""
