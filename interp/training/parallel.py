"""How do several processes train one model? Each takes its share of a step's rows; gradients are averaged.

The mean is over all processes' targets, however unequally these are spread.
"""

import copy
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from interp.errors import InputError, one_of
from interp.training.plan import Plan
from interp.transformer import Block, Transformer

Parallel = Literal["ddp", "fsdp"]
_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Processes:
    """The processes that train together; by default this one alone.

    "ddp": each has the whole model, and gradients are averaged. "fsdp": gradients and the optimizer's moments are
    sharded (FSDP2, a block at a time); each process also keeps the whole weights, to be measured and saved.
    """

    kind: Parallel | None = None
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one process that writes and reports."""
        return self.rank == 0

    def check(self, plan: Plan) -> None:
        """Refuse rows that processes and micro-batches cannot share equally."""
        shares = plan.accumulate * self.size
        for phase in plan.phases:
            if phase.rows % shares:
                raise InputError(f"{phase.rows} rows a step: expected a multiple of {shares}, for all micro-batches")

    def learning(self, model: Transformer) -> Transformer:
        """The model that learns in place of `model`: itself, or a copy sharded over the processes."""
        if self.kind is None:
            return model
        for weight in model.parameters():
            dist.broadcast(weight.data, 0)
        return model if self.kind == "ddp" else _sharded(copy.deepcopy(model))

    def calling(self, learning: Transformer) -> Callable[..., Any]:
        """The callable in place of `learning` that averages gradients."""
        if self.kind != "ddp":
            return learning
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 (slow to import, and rarely needed)

        return DistributedDataParallel(learning)

    def alone(self, calling: Any) -> AbstractContextManager:
        """A context in which each process adds up its own gradients without averaging."""
        return calling.no_sync() if self.kind == "ddp" else nullcontext()

    def summed(self, values: Tensor) -> Tensor:
        """Each process's `values`, added up in place, in every process."""
        if self.kind is not None:
            dist.all_reduce(values)
        return values

    def publish(self, learning: Transformer, model: Transformer) -> None:
        """Copy the learnt weights to `model`. Every process has to call this."""
        if learning is not model:
            with torch.no_grad():
                for weight, shared in zip(model.parameters(), learning.parameters(), strict=True):
                    weight.copy_(whole(shared.detach()))


def whole(tensor: Any) -> Tensor:
    """A tensor, sharded or not, as a whole. Every process has to call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # a DTensor, slow to import


def shared_as(value: Tensor, weight: Any) -> Tensor:
    """`value`, which every process has whole, sharded like `weight`."""
    if not hasattr(weight, "placements"):
        return value
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (slow to import, and rarely needed)

    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)


def _sharded(model: Transformer) -> Transformer:
    """FSDP2, a block at a time and then the rest; all together if blocks share weights."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (not there before torch 2.6)
    except ImportError as error:
        raise InputError('sharded training needs torch 2.6 or later: update it, or choose "ddp"') from error
    for weight in model.parameters():
        weight.data = weight.data.contiguous()  # FSDP2 takes no transposed layout
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    owners = Counter(id(weight) for block in blocks for weight in block.parameters())
    if all(count == 1 for count in owners.values()):
        for block in blocks:
            fully_shard(block)
    fully_shard(model)
    return model


@contextmanager
def joined(parallel: Parallel | None, model: Transformer) -> Iterator[Processes]:
    """The processes that torchrun started, or an existing group; this one alone if `parallel` is None.

    A model on a GPU moves to its process's GPU.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if parallel is None:
        if started > 1:
            raise InputError(f'each of {started} processes would train for itself: choose parallel "ddp" or "fsdp"')
        yield Processes()
        return
    one_of("parallel", parallel, Parallel)
    starts = not dist.is_initialized()
    if starts:
        if missing := [name for name in _SET_BY_TORCHRUN if name not in os.environ]:
            raise InputError(f"no processes share the work ({missing[0]} is not set): start them by torchrun")
        if model.device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            model.to(device)
        dist.init_process_group("nccl" if model.device.type == "cuda" else "gloo")
    try:
        yield Processes(parallel, dist.get_rank(), dist.get_world_size())
        if starts:
            dist.barrier()  # all leave together
    finally:
        if starts:
            dist.destroy_process_group()
