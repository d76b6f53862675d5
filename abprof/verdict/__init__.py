"""Pure: records in, verdicts out."""
