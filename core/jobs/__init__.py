"""Jobs: units of work for the workers. The database is the source of truth; the broker only carries their ids."""
