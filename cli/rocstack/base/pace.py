"""What a server must give or take in how many seconds of waiting for it. A limit of silence alone is none for one that
drips: it may hold a cluster's lock, or a thread, for ever."""

import time

PACE, PACE_S = 256 << 10, 120.0


class Pace:
    """Bytes that moved in the seconds that were waited for them."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 0, 0.0

    def count(self, moved: int, began: float) -> None:
        """
        Raises:
            TimeoutError: they are too few.
        """
        self.bytes, self.seconds = self.bytes + moved, self.seconds + time.monotonic() - began
        if self.bytes >= PACE:
            self.bytes, self.seconds = 0, 0.0
        elif moved and self.seconds > PACE_S:
            raise TimeoutError(f"less than {PACE >> 10} KB moved in {PACE_S:g} s")
