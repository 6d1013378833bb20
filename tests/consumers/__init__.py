"""Tests of deploy/consumers: the join, the stored records, and the programs with the real SDKs and the local broker."""
