"""Jobs: asked for, watched, cancelled."""
