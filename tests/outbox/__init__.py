"""Tests of the outbox: committed data stays, in order, within the bound."""
