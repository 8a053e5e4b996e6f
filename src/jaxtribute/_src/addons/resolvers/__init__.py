"""Clusters that other schedulers describe: Slurm, Kubernetes, Google Compute Engine and TPUs."""
