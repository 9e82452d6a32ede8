"""The process group as a context; the only owner of torch.distributed and of what a rank's environment says."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place, given to it by the launcher.

    `address` and `port` are where the store of the run listens, on the machine of rank 0; that one gets the listening
    socket itself, bound by the launcher, so that no other run can take the port in between. `interface` is the network
    interface of this machine that leads to the other ranks; None: the libraries choose.
    """

    rank: int
    size: int
    local_rank: int
    threads: int
    address: str
    port: int
    interface: str | None
    listener: socket.socket | None


@dataclass(frozen=True, slots=True)
class World:
    """All processes of a run, as one of them sees it. A world of one communicates with nobody."""

    rank: int
    size: int
    timeout: timedelta = timedelta(minutes=5)

    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether `flag` is true on any rank. Waits for all of them."""
        if self.size == 1:
            return flag
        vote = torch.tensor(float(flag), device=device)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return bool(vote.item())

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor` by that of rank 0."""
        if self.size > 1:
            dist.broadcast(tensor, 0)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mesh(self, device: str, shard: int) -> DeviceMesh:
        """All processes in rows of `shard`: a row holds one copy of the model. One row has one dimension, more have two."""
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

        if shard == self.size:
            return init_device_mesh(device, (shard,), mesh_dim_names=("shard",))
        ranks = torch.arange(self.size).view(-1, shard)
        groups = [
            dist.new_subgroups_by_enumeration(lists.tolist(), timeout=self.timeout)[0]  # type: ignore[no-untyped-call]
            for lists in (ranks.T, ranks)
        ]
        return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=("replicate", "shard"))


@contextmanager
def join(seat: Seat, backend: str, timeout: float) -> Iterator[World]:
    """The world while the processes of a run are connected. `timeout` seconds is how long one waits for another.

    On the way out after an error nothing is destroyed: a peer may hang or be gone, and the process ends anyway.
    Everything that holds the group (a DDP module) must be gone by then: its end would wait for ever.
    """
    os.environ.update(RANK=str(seat.rank), LOCAL_RANK=str(seat.local_rank), WORLD_SIZE=str(seat.size))
    if seat.size == 1:
        yield World(0, 1)
        return
    if seat.interface is not None:  # on one machine that of loopback: no traffic leaves it, no firewall is asked
        os.environ.setdefault("GLOO_SOCKET_IFNAME", seat.interface)
        if not seat.interface.startswith("lo"):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", seat.interface)
    limit = timedelta(seconds=timeout)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        seat.address,
        seat.port,
        seat.size,
        is_master=seat.rank == 0,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=seat.listener.detach() if seat.listener else None,
    )
    dist.init_process_group(backend, store=store, rank=seat.rank, world_size=seat.size, timeout=limit)
    world = World(seat.rank, seat.size, limit)
    yield world
    world.barrier()
    dist.destroy_process_group()
