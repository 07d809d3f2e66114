"""What the processes of a job do; started by `jobs.py`."""
