"""`python -m sgdf` is `sgdf`."""

import os
import sys

from sgdf.cli import main

code = main()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    # Of several processes, threads of gloo may still run when Python ends, and abort it then
    # though all is written: now and then torchrun would call a finished run failed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
