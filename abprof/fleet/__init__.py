"""Shards: whole cells that travel to one device each, and the loop that sends them there."""
