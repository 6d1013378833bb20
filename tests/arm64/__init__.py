"""`make arm64`: the demo and the fast tests in a Debian for arm64, its programs run by QEMU's user emulation."""
