"""``amend demo``: a finished tour on real data, through the REST API, with a whole Amend of its own."""
