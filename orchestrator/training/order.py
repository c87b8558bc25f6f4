"""Which samples a step trains on, which rank computes them, and every random number: all keyed, nothing carried.

    order of an epoch      f(seed, epoch)
    step s                 positions [s B, (s+1) B) of it, cut into micro-batches of m
    rank r                 a contiguous block of the step's micro-batches
    forward pass           seeded from (seed, epoch, step, micro-batch)

Neither the rank nor the number of workers is an argument of anything random, so neither can change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from orchestrator.config.batch import BatchPlan, block


def key(seed: int, purpose: str, *parts: int) -> int:
    """A 63-bit seed for one purpose: the BLAKE2b hash of the tuple, so that neighbouring keys have nothing in common."""
    text = repr((seed, purpose, *parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def permutation(count: int, seed_key: int) -> torch.Tensor:
    """A random order of 0..count-1, int64 of shape (count,), from a generator of its own."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed_key))


def subset(count: int, limit: int | None, seed: int, split: str) -> torch.Tensor:
    """Ids of the samples to use, ascending, int64: all, or `limit` of them drawn from the seed alone."""
    if limit is None or limit >= count:
        return torch.arange(count)
    return permutation(count, key(seed, f"subset {split}"))[:limit].sort().values


def epoch_order(ids: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
    """The order in which `epoch` visits `ids`: each once."""
    return ids[permutation(len(ids), key(seed, "order", epoch))]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward and backward pass: the index k within its step, and their ids (int64)."""

    index: int
    ids: torch.Tensor


@dataclass(frozen=True)
class StepBatch:
    """One rank's part of an optimizer step.

    `index` counts steps within the epoch from 0; `samples` and `micro_batch_count` are those of all ranks together.
    """

    index: int
    samples: int
    micro_batch_count: int
    micro_batches: tuple[MicroBatch, ...]


def steps_of_epoch(
    plan: BatchPlan, order: torch.Tensor, *, rank: int, world_size: int, first_step: int = 0
) -> Iterator[StepBatch]:
    """The steps of an epoch from `first_step` on, as this rank sees them.

    Every sample of `order` is in exactly one micro-batch of one rank; the last step may be short, and then a rank may
    have no micro-batch in it.
    """
    for index in range(first_step, plan.steps_per_epoch(len(order))):
        step = order[index * plan.batch_size : (index + 1) * plan.batch_size]
        ranges = plan.micro_batches(len(step))
        mine = block(len(ranges), world_size, rank)
        yield StepBatch(
            index=index,
            samples=len(step),
            micro_batch_count=len(ranges),
            micro_batches=tuple(MicroBatch(k, step[ranges[k].start : ranges[k].stop]) for k in mine),
        )
