"""The installed deb under a real systemd, in a virtual machine: `python -m tests.systemd`, `make -C tests systemd`.

`disk` makes a Debian without Python that boots systemd, `guest` boots it and runs commands in it, `proofs` has the
checks, and `__main__` runs them all. The agent's peers (the simulated metadata service, a broker, a collector) run in
this process, outside the guest.
"""
