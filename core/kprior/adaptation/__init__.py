"""From a state to the next one without the past: dense and wide GLMs, networks, and what an erasure asks for."""
