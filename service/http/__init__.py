"""What every endpoint shares: authentication, errors, pages, transactions, limits."""
