"""Jobs: start, watch, cancel."""
