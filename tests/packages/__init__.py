"""The deb and the rpm in fresh roots: `make packages-test`. It needs root, apt and some minutes."""
