"""`overdrive serve` around the scripted engine, as a process of its own: run_fake.py MODEL PORT TEMPLATE TIMEOUT.

A folder in place of the model's name is served by a real engine, with random weights.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fakes import engine_process

from overdrive.cli import report
from overdrive.config import EngineOptions, ModelOptions, ServerOptions
from overdrive.serve.process import run_engine
from overdrive.serve.server import serve

if __name__ == "__main__":
    model, port, template, timeout = sys.argv[1:]
    options = EngineOptions(model=ModelOptions(load_format="dummy", chat_template=template))
    with report():
        server = ServerOptions(port=int(port), drain_seconds=600.0, engine_timeout=float(timeout))
        serve(model, options, server, target=run_engine if Path(model).is_dir() else engine_process)
