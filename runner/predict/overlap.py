"""What of a window's communication the backward does not hide: buckets that become ready during it, on one link, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def after_backward(backward: float, buckets: Iterator[tuple[float, float]], seconds: Callable[[float], float]) -> float:
    """Seconds from the end of a backward of `backward` seconds to that of the last reduction. `buckets` are (the part of
    the backward after which it is ready, its bytes), `seconds` how long an all-reduce of so many bytes occupies the link."""
    free = 0.0
    for ready, size in buckets:
        free = max(free, ready * backward) + seconds(size)
    return max(0.0, free - backward)


def buckets_of(gradient: float, bucket: float, last: float) -> Iterator[tuple[float, float]]:
    """The buckets of a gradient of so many bytes, as DDP fills them: in the order of the backward, at an even pace, but for
    the `last` bytes, which are those of one parameter (an embedding, say) and come all at once in the end."""
    even, done = max(0.0, gradient - last), 0.0
    while even - done > 0:
        size = min(bucket, even - done)
        if size < bucket and last:  # a bucket is closed when it is full, so what is left joins the last parameter
            break
        done += size
        yield (done / even, size)
    if gradient > done:
        yield 1.0, gradient - done
