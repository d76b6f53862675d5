"""The run folder: its journal, run.json, and how an interrupted run is recovered."""
