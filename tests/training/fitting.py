"""Running the loop in a test: in this process, or as several gloo ranks in forked processes."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.config.batch import plan_batches
from orchestrator.config.contract import resolve
from orchestrator.config.options import TrainConfig
from orchestrator.data.dataset import prepare_dataset
from orchestrator.training.loop import fit
from orchestrator.training.session import LocalSession


@dataclass
class Fitted:
    """What a run returned and said."""

    final: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == kind]


def fit_here(config: TrainConfig, session: LocalSession | None = None) -> Fitted:
    """Fit in this process, or as this process's rank; the plan is that of the config's number of workers."""
    session = session or LocalSession()
    plan = plan_batches(config)
    final = fit(resolve(config, plan), prepare_dataset(config), plan, session)
    return Fitted(final, session.emitted)


def run_ranks(world_size: int, body: Callable[[], Any], rendezvous: Path, timeout_s: float = 120) -> list[Any]:
    """Run `body` in `world_size` forked processes with a gloo group; the results in rank order.

    Raises AssertionError with the traceback of a rank that failed or hung.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_rank_main, args=(rank, world_size, body, rendezvous, pipes[rank][1]))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        results = [_receive(reader, timeout_s, rank) for rank, (reader, _) in enumerate(pipes)]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return results


def _receive(reader: Any, timeout_s: float, rank: int) -> Any:
    assert reader.poll(timeout_s), f"rank {rank} gave no result in {timeout_s} s"
    ok, value = reader.recv()
    assert ok, f"rank {rank} failed:\n{value}"
    return value


def _rank_main(rank: int, world_size: int, body: Callable[[], Any], rendezvous: Path, writer: Any) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
        writer.send((True, body()))
    except BaseException:
        writer.send((False, traceback.format_exc()))
