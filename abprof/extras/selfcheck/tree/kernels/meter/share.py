"""The one file that differs between the branches: what share of the injected work is done."""

SHARE = 0.0
