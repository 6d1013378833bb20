"""Tests of the event files: their content, the directory, and the thread that writes them."""
