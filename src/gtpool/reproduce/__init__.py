"""Reproduction of the paper: its tables as runs, its numbers and claims, tuning and the report."""
