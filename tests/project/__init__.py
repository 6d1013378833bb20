"""Tests of the project itself: its layers, documents, deployment files, and fuzz cases."""
