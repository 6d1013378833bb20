"""Tests of the stand-ins for Azure, which other tests rely on."""
