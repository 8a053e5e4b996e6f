"""Messages between the processes of a cluster."""
