"""The installed deb under a real systemd, in a virtual machine: `python -m tests.systemd`, `make -C tests systemd`.

`disk` makes a Debian without Python that boots systemd, `guest` boots it and runs commands in it, `proofs` has what
must hold, and `__main__` runs them all. What the agent talks to (the simulated metadata service, a broker, a collector)
runs out here, in this process.
"""
