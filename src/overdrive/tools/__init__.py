"""Tool calls and reasoning as models write them: formats as data, the grammar for one of them, and its reader.

Knows text, JSON and token ids; must never know HTTP, the engine, or torch.
"""
