"""Streams of records over ledgers; what applications import."""
