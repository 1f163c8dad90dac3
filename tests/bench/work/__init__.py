"""The processes of a benchmark: their jobs, the messages between them and the command, and what they do."""
