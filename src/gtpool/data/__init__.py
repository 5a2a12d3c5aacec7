"""Graphs from files."""
