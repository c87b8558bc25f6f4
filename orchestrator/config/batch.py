"""The arithmetic of a batch: B samples a step, cut into K micro-batches of m, placed on W workers.

    global batch 256 = 4 micro-batches of 64 (2 workers x 2 accumulation steps)

B, m and K are fixed when a run is launched and stored in its checkpoints; W may change afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.options import TrainConfig
from orchestrator.errors import ConfigError


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class BatchPlan:
    """What of the batch stays fixed for the whole run."""

    batch_size: int
    micro_batch_size: int

    @property
    def micro_batches_per_step(self) -> int:
        # Not len(micro_batches(...)): a batch that is refused as larger than the data may be larger than memory too.
        count, rest = divmod(self.batch_size, self.micro_batch_size)
        joins = rest == 1 and count > 0
        return count + (rest > 0 and not joins)

    def micro_batches(self, samples: int) -> list[range]:
        """Positions of each micro-batch in a step of `samples` samples; at most `batch_size`.

        A remainder of one sample joins the micro-batch before it: batch norm is not defined on a single sample.
        """
        m = self.micro_batch_size
        starts = list(range(0, samples, m))
        if m > 1 and len(starts) > 1 and samples - starts[-1] == 1:
            starts.pop()
        return [range(a, b) for a, b in zip(starts, [*starts[1:], samples], strict=True)]

    def steps_per_epoch(self, num_train: int) -> int:
        return ceil_div(num_train, self.batch_size)

    def describe(self, workers: int) -> str:
        """The arithmetic as one line; `workers` is 0 for a run in this process."""
        sizes = [len(r) for r in self.micro_batches(self.batch_size)]
        cut = f"{_count(len(sizes), 'micro-batch', 'micro-batches')} of {sizes[0]}"
        if sizes[-1] != sizes[0]:
            cut += f", the last of {sizes[-1]}"
        if workers == 0:
            return f"global batch {self.batch_size} = {cut} (in this process)"
        shares = sorted({len(block(len(sizes), workers, rank)) for rank in range(workers)})
        steps = f"{'-'.join(map(str, shares))} accumulation step{'s' * (shares != [1])}"
        return f"global batch {self.batch_size} = {cut} ({_count(workers, 'worker', 'workers')} x {steps})"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def block(count: int, workers: int, rank: int) -> range:
    """The contiguous block of `count` items that `rank` owns; blocks differ by at most one, the first are longer."""
    size, longer = divmod(count, max(workers, 1))
    start = rank * size + min(rank, longer)
    return range(start, start + size + (rank < longer))


def plan_batches(config: TrainConfig) -> BatchPlan:
    """Fix B and m for the launch of a run.

    Raises ConfigError if micro-batch size, accumulation steps, batch and workers contradict one another.
    """
    batch, workers = config.batch_size, max(config.max_workers, 1)
    micro, accumulation = config.micro_batch_size, config.accumulation_steps
    if workers > batch:
        raise ConfigError(
            f"--batch-size {batch} is less than one sample for each of {workers} workers. "
            f"Use --batch-size {workers} or more, or --num-workers {batch} or fewer."
        )
    if accumulation is not None and accumulation * workers > batch:
        raise ConfigError(
            f"--accumulation-steps {accumulation} on {workers} workers asks for {accumulation * workers} micro-batches, "
            f"more than the {batch} samples of --batch-size. Use --accumulation-steps {batch // workers} or fewer."
        )
    if micro is None:
        return _checked(BatchPlan(batch, ceil_div(batch, workers * (accumulation or 1))), workers)
    if micro > batch:
        raise ConfigError(
            f"--micro-batch-size {micro} is more than --batch-size {batch}. "
            f"The batch is the global one, over all workers: use --batch-size {micro * workers}, or a smaller micro-batch."
        )
    plan = _checked(BatchPlan(batch, micro), workers)
    if accumulation is not None and ceil_div(plan.micro_batches_per_step, workers) != accumulation:
        raise ConfigError(
            f"--batch-size {batch}, --micro-batch-size {micro} and --accumulation-steps {accumulation} do not agree: "
            f"{batch} samples in micro-batches of {micro} on {_count(workers, 'worker', 'workers')} are "
            f"{ceil_div(plan.micro_batches_per_step, workers)} accumulation steps. "
            f"Leave one of them out, or use --batch-size {micro * accumulation * workers}."
        )
    return plan


def _checked(plan: BatchPlan, workers: int) -> BatchPlan:
    count = plan.micro_batches_per_step
    if workers > count:
        raise ConfigError(
            f"{workers} workers, but --batch-size {plan.batch_size} in micro-batches of {plan.micro_batch_size} is only "
            f"{count} of them a step: {workers - count} would never work. Use --num-workers {count} or fewer, "
            f"or --micro-batch-size {max(plan.batch_size // workers, 1)}."
        )
    return plan


def imbalance(plan: BatchPlan, workers: int) -> str | None:
    """A sentence for the user when some workers do clearly more than others, else None."""
    sizes = [len(r) for r in plan.micro_batches(plan.batch_size)]
    loads = [sum(sizes[k] for k in block(len(sizes), workers, rank)) for rank in range(max(workers, 1))]
    if max(loads) <= 1.2 * min(loads):
        return None
    return (
        f"unbalanced: of {plan.batch_size} samples a step the busiest worker gets {max(loads)} and the least busy "
        f"{min(loads)}; {len(sizes)} micro-batches on {workers} workers do not divide evenly"
    )
