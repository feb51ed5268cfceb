"""`overdrive serve` around the scripted engine, as a process of its own: run_fake.py MODEL PORT TEMPLATE TIMEOUT."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fakes import engine_process

from overdrive.cli import report
from overdrive.config import EngineOptions, ModelOptions, ServerOptions
from overdrive.serve.server import serve

if __name__ == "__main__":
    model, port, template, timeout = sys.argv[1:]
    options = EngineOptions(model=ModelOptions(load_format="dummy", chat_template=template))
    with report():
        server = ServerOptions(port=int(port), drain_seconds=5.0, engine_timeout=float(timeout))
        serve(model, options, server, target=engine_process)
