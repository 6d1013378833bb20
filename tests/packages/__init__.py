"""The deb and the rpm in fresh roots: `make -C tests packages`. It needs root, apt, and some minutes."""
