"""System tests: processes, crashes, faults, peers, and packages. `make test-fast` leaves them out."""
