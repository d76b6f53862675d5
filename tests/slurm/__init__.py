"""The Slurm executor and its job scripts, on a real slurmctld and slurmd if they are installed."""
