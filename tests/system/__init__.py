"""Tests of the whole: processes, crashes, faults, peers and packages. `make test-fast` leaves them out."""
