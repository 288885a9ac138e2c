"""The REST service: thin endpoints over `core`, one file or folder for each resource."""
