"""Pages for people: models, one model, privacy; signed in with a key. They show and do what the API shows and does."""
