"""Adam on minibatches, for networks."""

import torch
from torch import Tensor

from core.kprior.objective.objective import Objective
from core.kprior.objective.terms import Batch
from core.kprior.passes.cost import Cost
from core.kprior.solvers.base import Progress, Solution, SolverError, Team, Training, Watch
from core.kprior.solvers.checkpoint import Checkpoint, Checkpoints
from core.kprior.solvers.fused_adam import FusedAdam
from core.kprior.solvers.learning_rate import Schedule


def adam(
    objective: Objective,
    start: Tensor,
    training: Training,
    cost: Cost,
    progress: Progress | None = None,
    watch: Watch | None = None,
    team: Team | None = None,
    checkpoints: Checkpoints = Checkpoints(),  # noqa: B008 - immutable
) -> Solution:
    """Minimise all terms with Adam on minibatches; the learning rate falls when the objective stops falling.

    The members of a team draw the same minibatches and sum the gradients of their parts. The steps are those of a
    single process, except for rounding errors and the random numbers of dropout. A training that resumes at a
    checkpoint ends with the same weights as one that was never interrupted.
    """
    predictor, resume, keep = objective.predictor, checkpoints.resume, checkpoints.keep
    rank, world = (0, 1) if team is None else (team.rank, team.world)
    if training.batch_size is not None and training.batch_size < 1:
        raise ValueError("batch_size must be at least 1, or None for all rows.")
    w = start.clone().requires_grad_()
    terms = [term for term in objective.terms if term.rows()]
    rows = sum(term.stands_for() for term in terms)
    steps = 1 if training.batch_size is None else max(1, round(rows / training.batch_size))
    optimizer = FusedAdam(w, training.learning_rate)
    generator = torch.Generator().manual_seed(training.seed)
    schedule = Schedule(training, steps)
    if resume is not None:
        resume.restore(optimizer, generator, schedule, cost)
    with torch.random.fork_rng(devices=[]):
        for epoch in range(0 if resume is None else resume.epoch, training.max_epochs):
            # dropout uses the global generator, which is seeded in each epoch so that a training can be resumed
            seed = training.seed + rank + world * epoch
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes a hundred times as long
            if w.is_cuda:
                torch.cuda.manual_seed(seed)
            optimizer.rate = schedule.learning_rate(epoch)
            total = 0.0
            streams = [term.minibatches(steps, training.batch_size, generator) for term in terms]
            for _ in range(steps):
                loss = objective.smooth_part(w) / world
                for term, stream in zip(terms, streams, strict=True):
                    drawn = next(stream, None)
                    if drawn is None:
                        continue
                    batch, factor = drawn
                    cost.backward_passes += len(batch[0])
                    z, targets, weight = split_batch(batch, rank, world)
                    f = predictor.outputs_of_encoded(w, z, training=True)
                    loss = loss + factor * term.loss(f, targets, weight)
                w.grad = None
                loss.backward()
                value = loss.detach()
                if team is not None and w.grad is not None:
                    together = team.sum(torch.cat([w.grad, value[None]]))
                    w.grad, value = together[:-1], together[-1]
                optimizer.step()
                total += float(value)
                if watch and watch(cost.backward_passes, w.detach()):
                    return Solution(require_finite(w.detach().clone()), False)
            cost.data_passes += sum(term.past for term in terms)
            require_finite(torch.cat([w.detach(), w.detach().new_tensor([total])]))
            if progress:
                progress((epoch + 1) / training.max_epochs, f"epoch {epoch + 1} of at most {training.max_epochs}")
            if schedule.over(epoch, total / steps):
                break
            if keep:
                keep(Checkpoint.of(epoch + 1, optimizer, generator, schedule, cost))
    return Solution(w.detach().clone(), schedule.stalled or training.patience is None)


def split_batch(batch: Batch, rank: int, world: int) -> Batch:
    """The part of a minibatch that one member of a team processes."""
    if world == 1:
        return batch
    z, targets, weight = batch
    return z[rank::world], targets[rank::world], None if weight is None else weight[rank::world]


def require_finite(values: Tensor) -> Tensor:
    """Return the values, or raise if any is not finite."""
    if not bool(values.isfinite().all()):
        raise SolverError(
            "The training diverged: not all weights are finite. Lower the learning rate, or check the examples."
        )
    return values
