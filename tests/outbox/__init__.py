"""Tests of the outbox: what is committed stays, in order, within its bound."""
