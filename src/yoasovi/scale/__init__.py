"""Many fits: on the processes of one machine, or on a cluster."""
