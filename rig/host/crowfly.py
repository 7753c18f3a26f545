"""The program under test, asked on the host about a snapshot that it took in a guest."""

import json
import subprocess

#: What the guest leaves: the snapshot, where the rig found each device of the shape, and the test
#: that leaves the snapshot.
SNAPSHOT, ADDRESSES, TEST = "snapshot.json", "addresses", "capture"


class Disagreement(Exception):
    """crowfly says something else than the machine, the kernel, or than it used to."""


class Reader:
    """Runs `binary` on one snapshot."""

    def __init__(self, binary, snapshot):
        self.binary = binary
        self.snapshot = snapshot

    def says(self, arguments):
        done = subprocess.run([self.binary, *arguments, "--snapshot", self.snapshot], capture_output=True, text=True)
        if done.returncode:
            raise Disagreement(f"crowfly {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def tells(self, arguments):
        """The same as a JSON document."""
        return json.loads(self.says([*arguments, "--json"]))


def read_addresses(out):
    return dict(line.split() for line in (out / ADDRESSES).read_text().splitlines())
