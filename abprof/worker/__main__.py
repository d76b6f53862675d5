"""`python -P run_worker.py` comes here (abprof/builds/worker_bundle.py writes that file)."""

import sys

from abprof.worker.main import main

sys.exit(main())
