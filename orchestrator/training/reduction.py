"""How the gradients of a step's micro-batches become one gradient, the same on every rank.

Each micro-batch's loss is already divided by the samples of the whole step, so the gradient of the step is the plain
sum over all micro-batches of all ranks, however many each rank has. `TreeReduction` adds in the order of
`orchestrator.training.tree`, so that the sum has the same bits for every number of ranks; inside its collectives data
is only moved, or two numbers are added, whose order does not matter. `PlainReduction` leaves the order to DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orchestrator.config.batch import block
from orchestrator.training.order import MicroBatch, StepBatch
from orchestrator.training.tree import BlockFold, Node, add_up, maximal_subtrees

ForwardBackward = Callable[[MicroBatch], None]
Subtrees = Sequence[tuple[Node, torch.Tensor]]


class GradientReduction(Protocol):
    """Runs the micro-batches of this rank and leaves the summed gradient of the step in `.grad`. A collective."""

    def run(self, step: StepBatch, forward_backward: ForwardBackward) -> None: ...


def build_reduction(model: nn.Module, *, rank: int, world_size: int, deterministic: bool) -> GradientReduction:
    """`model` is what the session prepared: bare with one rank, else wrapped in DDP."""
    if deterministic:
        return TreeReduction(model, rank, world_size)
    return PlainReduction(model, world_size)


class PlainReduction:
    """DDP's own buckets and all-reduce, which overlaps with the last backward pass."""

    def __init__(self, model: nn.Module, world_size: int) -> None:
        self._world_size = world_size
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        _set_hook(self._ddp, _all_reduce)

    def run(self, step: StepBatch, forward_backward: ForwardBackward) -> None:
        # In a short last step some ranks may have nothing to do. DDP reduces inside a backward pass, which they do not
        # run, so in such a step every rank reduces afterwards instead.
        overlap = step.micro_batch_count >= self._world_size
        for position, micro_batch in enumerate(step.micro_batches, start=1):
            with _unsynchronised(self._ddp, unless=overlap and position == len(step.micro_batches)):
                forward_backward(micro_batch)
        if self._ddp is not None and not overlap:
            flat = _flatten(_take_gradients(self._parameters))
            dist.all_reduce(flat)
            _put_gradients(self._parameters, flat)


class TreeReduction:
    """The canonical tree: folded here as the micro-batches come, then across ranks bucket by bucket as DDP fills them."""

    def __init__(self, model: nn.Module, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._index = {p: i for i, p in enumerate(self._parameters)}
        self._leaves = 0
        self._last = 0
        self._fold: BlockFold[list[torch.Tensor]] = BlockFold(0, range(0), _add_lists)
        _set_hook(self._ddp, self._reduce_bucket)

    def run(self, step: StepBatch, forward_backward: ForwardBackward) -> None:
        self._leaves = step.micro_batch_count
        self._fold = BlockFold(self._leaves, block(self._leaves, self._world_size, self._rank), _add_lists)
        in_backward = self._ddp is not None and self._leaves >= self._world_size
        for position, micro_batch in enumerate(step.micro_batches, start=1):
            last = in_backward and position == len(step.micro_batches)
            self._last = micro_batch.index
            with _unsynchronised(self._ddp, unless=last):
                forward_backward(micro_batch)
            if not last:
                self._fold.push(micro_batch.index, _take_gradients(self._parameters))
        if self._world_size == 1:
            ((_, gradients),) = self._fold.subtrees()
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
        elif not in_backward:
            subtrees = [(node, _flatten(gradients)) for node, gradients in self._fold.subtrees()]
            _put_gradients(self._parameters, self._across_ranks(subtrees))
        for parameter in self._parameters:
            # DDP leaves None where no rank had a gradient; without it there are zeros, which an optimizer treats otherwise.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _reduce_bucket(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook: its buffer holds the last micro-batch; what was folded before it is laid out in the same way."""
        buffer: torch.Tensor = bucket.buffer()
        fold: BlockFold[torch.Tensor] = BlockFold(self._leaves, self._fold.block, torch.Tensor.add_)
        fold.resume([(node, self._laid_out(bucket, gradients)) for node, gradients in self._fold.subtrees()])
        fold.push(self._last, buffer)
        subtrees = fold.subtrees()
        if self._is_one_addition():
            return _all_reduce_tensor(subtrees[0][1])
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(self._across_ranks(subtrees))
        return future

    def _laid_out(self, bucket: Any, gradients: list[torch.Tensor]) -> torch.Tensor:
        buffer: torch.Tensor = bucket.buffer()
        flat = torch.empty_like(buffer)
        for parameter, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
            offset = view.storage_offset() - buffer.storage_offset()
            flat.as_strided(view.size(), view.stride(), offset).copy_(gradients[self._index[parameter]])
        return flat

    def _blocks(self) -> list[range]:
        return [block(self._leaves, self._world_size, rank) for rank in range(self._world_size)]

    def _is_one_addition(self) -> bool:
        """Two ranks with one subtree each: a + b is b + a, so any all-reduce gives the bits of the tree."""
        return self._world_size == 2 and all(len(maximal_subtrees(self._leaves, b)) == 1 for b in self._blocks())

    def _across_ranks(self, mine: Subtrees) -> torch.Tensor:
        nodes = [maximal_subtrees(self._leaves, b) for b in self._blocks()]
        size = sum(p.numel() for p in self._parameters) if not mine else mine[0][1].numel()
        return reduce_in_tree_order(self._leaves, nodes, [value for _, value in mine], size, self._parameters[0])


def reduce_in_tree_order(
    leaves: int, nodes: Sequence[Sequence[Node]], mine: Sequence[torch.Tensor], size: int, like: torch.Tensor
) -> torch.Tensor:
    """The root of the tree, flat of `size` elements, on every rank. A collective.

    `nodes` are the subtrees of each rank and `mine` the values of this rank's. Every rank owns one chunk of the
    elements: it receives that chunk of all subtrees, adds them in the order of the tree, and the sums are gathered;
    in the aligned case these are the bytes of a ring all-reduce. `like` gives dtype and device.
    """
    world_size = len(nodes)
    chunk = -(-size // world_size)
    outgoing = like.new_zeros(len(mine), world_size * chunk)
    for row, value in zip(outgoing, mine, strict=True):
        row[:size] = value
    outgoing = outgoing.view(len(mine), world_size, chunk).transpose(0, 1).contiguous()
    counts = [len(subtrees) for subtrees in nodes]
    incoming = like.new_empty(sum(counts), chunk)
    dist.all_to_all_single(
        incoming.view(-1), outgoing.view(-1), [n * chunk for n in counts], [len(mine) * chunk] * world_size
    )
    values = dict(zip((node for subtrees in nodes for node in subtrees), incoming, strict=True))
    gathered = like.new_empty(world_size * chunk)
    dist.all_gather_single(gathered, add_up(leaves, values, torch.add))
    return gathered[:size]


def _set_hook(ddp: DistributedDataParallel | None, hook: Callable[[Any], torch.futures.Future[torch.Tensor]]) -> None:
    if ddp is not None:
        # DDP inspects a hook's annotations and knows none but its own; a lambda has none.
        ddp.register_comm_hook(None, lambda _state, bucket: hook(bucket))


def _unsynchronised(ddp: DistributedDataParallel | None, *, unless: bool) -> AbstractContextManager[None]:
    return nullcontext() if ddp is None or unless else ddp.no_sync()


def _all_reduce(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    return _all_reduce_tensor(bucket.buffer())


def _all_reduce_tensor(flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(flat, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _take_gradients(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """The gradients, zeros where there is none, taken away from the parameters."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def _put_gradients(parameters: Sequence[nn.Parameter], flat: torch.Tensor) -> None:
    parts = torch.split(flat, [p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))


def _flatten(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([g.reshape(-1) for g in gradients])


def _add_lists(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    for x, y in zip(a, b, strict=True):
        x.add_(y)
    return a
