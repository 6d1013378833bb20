"""The deb and the rpm in fresh roots: `make packages-test`. Outside of `make test`: it needs root, apt and some minutes."""
