"""What a worker keeps of the rows that it has read; tests/endurance/test_sharing.py has the rest."""

from __future__ import annotations

from core.ledger import passes
from core.models import catalog
from tests.worker.deployment import Deployment, problem
from worker.passes.shared import RowCache


def test_rows_are_kept_for_their_position_alone(deployment: Deployment) -> None:
    name, (x, y) = deployment.new_model(), problem(60)
    deployment.add_examples(name, x, y, split="train")
    with deployment.database.read() as session:
        model = catalog.find(session, name, None)
    kept, span = RowCache(), range(0, 30)

    def rows(at: int) -> int:
        part = passes.read_in_force(deployment.database, model.id, model.spec, at).narrow(span)
        return sum(len(chunk) for chunk in kept.read(part))

    assert (rows(60), rows(60)) == (30, 30)
    deployment.remove(name, range(5))
    assert (rows(65), rows(60)) == (25, 30)  # the same shard, of which less is in force
    assert len(kept.chunks) == 2
