"""The arithmetic of a batch: B samples a step, cut into K micro-batches of m, placed on W workers.

    global batch 256 = 4 micro-batches of 64 (2 workers x 2 accumulation steps)

B, m and K are fixed when a run is launched and stored in its checkpoints; W may change afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class _Asked:
    """What was asked for of a batch; `None` is derived from the others."""

    batch_size: int
    num_workers: int
    micro_batch_size: int | None
    accumulation_steps: int | None

    def plan(self) -> BatchPlan:
        derived = ceil_div(self.batch_size, self.num_workers * (self.accumulation_steps or 1))
        return BatchPlan(self.batch_size, self.micro_batch_size or derived)

    def problem(self) -> str | None:
        """Why this cannot be, as a sentence; None if it can."""
        batch, micro, accumulation = self.batch_size, self.micro_batch_size, self.accumulation_steps
        workers = _count(self.num_workers, "worker", "workers")
        if self.num_workers > batch:
            return f"--batch-size {batch} is less than one sample for each of {workers}."
        if accumulation is not None and accumulation * self.num_workers > batch:
            return (
                f"--accumulation-steps {accumulation} on {workers} asks for {accumulation * self.num_workers} "
                f"micro-batches, more than the {_count(batch, 'sample', 'samples')} of --batch-size."
            )
        if micro is not None and micro > batch:
            return f"--micro-batch-size {micro} is more than --batch-size {batch}, which is the global one, over all workers."
        count = self.plan().micro_batches_per_step
        if self.num_workers > count:
            return (
                f"{workers}, but --batch-size {batch} in micro-batches of {self.plan().micro_batch_size} is only "
                f"{count} of them a step: {self.num_workers - count} would never work."
            )
        steps = ceil_div(count, self.num_workers)
        if micro is not None and accumulation is not None and steps != accumulation:
            return (
                f"--batch-size {batch}, --micro-batch-size {micro} and --accumulation-steps {accumulation} do not agree: "
                f"{_count(batch, 'sample', 'samples')} in micro-batches of {micro} on {workers} are "
                f"{_count(steps, 'accumulation step', 'accumulation steps')}."
            )
        return None

    def choices(self) -> list[str]:
        """Flags of which each alone makes it possible. There is always one: a batch that divides evenly."""
        batch, workers = self.batch_size, self.num_workers
        micro, accumulation = self.micro_batch_size, self.accumulation_steps
        one_each, steps = workers * (micro or 1), accumulation or 1
        count = self.plan().micro_batches_per_step
        share = batch // (workers * steps)
        values: dict[str, list[int | None]] = {
            "batch_size": [one_each, one_each * steps],
            "num_workers": [self._fewer_workers()],
            "micro_batch_size": [share, share + 1, None] if micro else [batch // workers],
            "accumulation_steps": [ceil_div(count, workers), batch // workers, None] if accumulation else [],
        }
        return [choice for name, candidates in values.items() if (choice := self._first_that_works(name, candidates))]

    def _fewer_workers(self) -> int:
        """The most workers that all have something to do."""
        workers = max(min(self.num_workers, self.batch_size // (self.accumulation_steps or 1)), 1)
        if self.micro_batch_size and self.accumulation_steps:
            return ceil_div(self.plan().micro_batches_per_step, self.accumulation_steps)
        # Fewer workers may mean larger micro-batches, and so fewer of these.
        while (count := replace(self, num_workers=workers).plan().micro_batches_per_step) < workers:
            workers = count
        return workers

    def _first_that_works(self, name: str, candidates: list[int | None]) -> str | None:
        flag = "--" + name.replace("_", "-")
        for value in candidates:
            change: dict[str, Any] = {name: value}
            if value != 0 and replace(self, **change).problem() is None:
                return f"no {flag}" if value is None else f"{flag} {value}"
        return None


def plan_batches(config: TrainConfig) -> BatchPlan:
    """Fix B and m for the launch of a run.

    Raises ConfigError if micro-batch size, accumulation steps, batch and workers contradict one another, with the
    changes that would each be enough.
    """
    asked = _Asked(config.batch_size, max(config.max_workers, 1), config.micro_batch_size, config.accumulation_steps)
    if problem := asked.problem():
        raise ConfigError(f"{problem} Use {', or '.join(asked.choices())}.")
    return asked.plan()


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
