"""Where random streams start: one number for every purpose, from the seed and from what it is for.

Neither rank nor worker takes part, so a stream is the same whatever the setup. Pure arithmetic.
"""

from __future__ import annotations

from hashlib import blake2b


def derive(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit number that depends on the seed, the purpose, and the parts (an update, an item's id, ...).

    BLAKE2b (RFC 7693) keeps streams of neighbouring updates and items unrelated.
    """
    text = f"{seed}/{purpose}/{'/'.join(map(str, parts))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
