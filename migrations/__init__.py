"""The migrations of the database schema. `python -m migrations` upgrades a database to the newest."""
