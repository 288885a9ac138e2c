"""Jobs: units of worker work. The database is the truth about them; the broker only carries their ids."""
