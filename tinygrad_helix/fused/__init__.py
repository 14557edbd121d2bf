"""Whole blocks as one node each."""
