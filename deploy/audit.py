"""Ask whether anything known is wrong with what the service is locked to: python deploy/audit.py

It asks pip-audit, which asks over the network. Where nobody can be reached it says so, and does not fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")


def verdict(output: str) -> tuple[int, str]:
    """An exit code and a sentence for what pip-audit has written.

    >>> verdict('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1"}]}]}')
    (1, 'known to be wrong: a 1 (X-1); make lock with a later version')
    >>> verdict('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}')
    (0, 'nothing is known against any of 1 packages')
    >>> verdict('{"dependencies": [{"name": "a", "skip_reason": "not found"}]}')[1][:39]
    '1 of 1 packages were not audited: nobod'
    >>> verdict("a traceback")[1][:43]
    'the lock was not audited: nobody who knows '
    """
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 0, "the lock was not audited: nobody who knows of weaknesses can be reached from here"
    wrong = [
        f"{each['name']} {each['version']} ({', '.join(v['id'] for v in each['vulns'])})"
        for each in found if each.get("vulns")
    ]  # fmt: skip
    if wrong:
        return 1, f"known to be wrong: {'; '.join(wrong)}; make lock with a later version"
    if skipped := sum("skip_reason" in each for each in found):
        return 0, f"{skipped} of {len(found)} packages were not audited: nobody who knows them can be reached from here"
    return 0, f"nothing is known against any of {len(found)} packages"


def main() -> int:
    command = ["-m", "pip_audit", "--disable-pip", "--require-hashes", "-r", str(LOCK), "-f", "json",
               "--progress-spinner", "off", "--timeout", "5"]  # fmt: skip
    try:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)
        code, said = verdict(done.stdout)
    except subprocess.TimeoutExpired:
        code, said = verdict("")
    print(f"pip-audit: {said}")
    return code


if __name__ == "__main__":
    sys.exit(main())
