"""Where facts are recorded, and what things are called: the metadata store and the names kept in it."""
