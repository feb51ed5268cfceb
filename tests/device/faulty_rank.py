"""Run as a follower's process: comes to the end that the environment asks for."""

from __future__ import annotations

import os
import sys
import time

from overdrive.device.parallel.link import Failed, FollowerEnd, Hello, end_with_leader


def main(address: str, what: str) -> None:
    link = FollowerEnd(address)
    if what == "says why":
        link.send(Failed("the weights are gone"))
        link.close()
        sys.exit(1)
    if what == "says nothing":
        os._exit(3)
    if what == "waits":
        end_with_leader()
    link.send(Hello())
    time.sleep(600)  # "hangs", but for its leader's end


if __name__ == "__main__":
    main(sys.argv[1], os.environ["WHAT"])
