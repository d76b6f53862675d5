"""`python -P run_worker.py` comes here (abprof/harness.py writes that file)."""

import sys

from abprof.worker.main import main

sys.exit(main())
