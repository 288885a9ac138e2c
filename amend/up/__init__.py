"""``amend up``: starts and supervises all processes of Amend on this machine. `stack` defines the processes."""
