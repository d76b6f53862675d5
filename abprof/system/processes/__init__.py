"""The one doorway to child processes: workers, builders, and nothing else starts one.

Every child leads its own process group (one in the foreground shares its parent's terminal) and bears a mark in its
environment, so that whatever it forks dies with it, also what has left the group. That it dies with its parent, also
when that one is killed with -9, it sees to itself (abprof/worker/main.py).
"""

from abprof.system.processes.children import *
from abprof.system.processes.forks import ForkServer as ForkServer
from abprof.system.processes.tools import *
from abprof.system.processes.worker import *
