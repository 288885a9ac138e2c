"""API keys: who may do what with which models. Only a hash of a key's secret is stored."""
