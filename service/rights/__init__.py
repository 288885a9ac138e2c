"""What a person can ask for besides erasure: access, correction and restriction of processing."""
