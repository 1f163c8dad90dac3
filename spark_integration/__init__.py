"""Streams as a Spark data source."""
