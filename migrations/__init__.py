"""The database schema, step by step. `python -m migrations` brings a database to the newest."""
