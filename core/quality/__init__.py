"""Is a version good? Test-then-train evaluation, the promotion gate, batch alarms and drift detection."""
