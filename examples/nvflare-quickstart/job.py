"""Run it in NVFlare's simulator: python job.py [folder]"""

import sys

from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from paid import PaidFlowers

if __name__ == "__main__":
    job = FedJob(name="flowers", min_clients=4)
    job.to_server(PaidFlowers(num_clients=4, num_rounds=2))
    for number in range(1, 5):
        job.to(ScriptRunner(script="client.py", framework="numpy"), f"site-{number}")
    job.simulator_run(sys.argv[1] if len(sys.argv) > 1 else "simulated")
