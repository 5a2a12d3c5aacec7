"""The paper again: its tables as runs, its numbers and claims, tuning, and the report on all."""
