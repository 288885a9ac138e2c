"""Jobs: the units of work of workers. The database is their source of truth; the broker only carries their ids."""
