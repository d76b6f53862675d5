"""Epochs: what is measured, the pool of workers, one cell in one epoch, and when to stop."""
