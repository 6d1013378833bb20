"""`make -C tests arm64`: the demo and the fast tests in an arm64 Debian, its programs run by QEMU's user emulation."""
