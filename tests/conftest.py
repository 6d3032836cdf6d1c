"""What tests would leave in a home folder goes where it is thrown away."""

import os
import tempfile

os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="verax-tests-")
