"""A load client for OpenAI-compatible servers, and the report of what it measured. Knows HTTP and files, no engine."""
