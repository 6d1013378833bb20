"""Tests of deploy/consumers: the join, what is kept, and the programs behind the real SDKs and the local broker."""
