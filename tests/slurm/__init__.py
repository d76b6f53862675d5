"""The Slurm executor, and what is told to Slurm: on a real slurmctld and slurmd where they are installed."""
