"""A discrete-event engine in which controllers are judged: the classes that serve, against costs and acceptance known
exactly. Nothing here measures a machine: every figure that comes out is simulated.

costs.py what steps take · acceptance.py how often drafts are right · loads.py, traces.py who asks for what, and when ·
engine.py the events · truth.py what the best plan of a step was · results.py what a run came to · arms.py names of
controllers.
"""
