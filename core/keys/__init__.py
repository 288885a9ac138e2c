"""API keys: permissions for models. Only a hash of a key's secret is stored."""
