"""Overdrive: an LLM server in which speculation is a gear, not a launch flag."""

__version__ = "0.1.0"
