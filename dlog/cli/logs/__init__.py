"""Commands on logs: create, list, show and delete them; write, read and follow their records."""
