"""Web pages: overview, model and privacy, after signing in with an API key. They call the same functions as the API."""
