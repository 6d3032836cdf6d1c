"""What tests would leave in a home folder goes where it is thrown away."""

import importlib.util
import os
import tempfile

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="verax-tests-")
collect_ignore = [] if importlib.util.find_spec("nvflare") else ["nvflare_job.py"]  # a job that its simulator runs
