"""The tests of the command `service`."""
