"""Tests of the shell: one agent over scripted sources, disks, clocks and destinations, in this process."""
