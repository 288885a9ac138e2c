"""From one state to the next without the past data: dense and wide GLMs, networks, changes of schema, erasure."""
