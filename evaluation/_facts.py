"""What a run was: everything a reader needs to repeat it."""

from typing import Any

from xattn._versions import versions
from xattn.evaluation._plan import Plan
from xattn.explain import configuration


def facts_of(plan: Plan, skipped: int) -> dict[str, Any]:
    """Model, data, configuration and versions, in the types of JSON."""
    return {
        "model": plan.model.name,
        "model_description": plan.model.description,
        "model_hash": plan.model_hash,
        "device": str(plan.model.device),
        "dataset": plan.dataset.name,
        "samples": plan.limit,
        "skipped": skipped,
        "target": plan.explained,
        "seeds": list(plan.seeds),
        "reads": plan.dataset.holds,
        "chunk_size": plan.chunk_size,
        "batch_size": plan.batch_size,
        "methods": {name: configuration(method) for name, method in plan.build_methods().items()},
        "protocols": [judge.configuration() for judge in plan.judges],
        "versions": versions(),
    }
