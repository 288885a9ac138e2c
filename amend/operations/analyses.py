"""Analyses of a model, which change nothing: previews, leave-one-out, cross-validation, tuning, influence, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from amend import responses
from amend.client_methods import listing, operation
from amend.requests import Caller, Flow, Pages, path, without_none
from amend.waiting import await_job


class Analyses(Caller):
    @operation
    def analyse(
        self, model: str, request: str | Mapping[str, Any], *, timeout: float | None = None
    ) -> Flow[responses.Analysis]:
        """Analyse a model and wait for the result. The model does not change.

        ``request`` is a kind (``leave_one_out``, ``cross_validation``, ``tuning``, ``influence`` or ``labelling``), or
        the complete request, such as ``{"kind": "influence", "by": "source"}``. The analysis that is returned has
        ``.to_pandas()`` and ``.plot()``.

        Raises JobFailed if the analysis failed, and TimeoutError after ``timeout`` seconds; the job continues.
        """
        body = {"kind": request} if isinstance(request, str) else request
        return (yield from self.run_analysis(model, body, timeout))

    @operation
    def preview(
        self,
        model: str,
        *,
        remove: Mapping[str, Any] | None = None,
        add: Sequence[Mapping[str, Any]] | None = None,
        change: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Analysis]:
        """What a change would do to the metrics and predictions of a model, without the change.

        ``remove`` is ``{"ids": [...]}``, ``{"subjects": [...]}`` or ``{"source": "..."}``; ``add`` has examples, and
        ``change`` is a change of the spec as in ``change_model``.
        """
        body = {"kind": "preview", **without_none({"remove": remove, "add": add, "change": change})}
        return (yield from self.run_analysis(model, body, timeout))

    @operation
    def analysis(self, model: str, id: str) -> Flow[responses.Analysis]:
        """One analysis with its result, which is None until the analysis has finished."""
        return self.ask(responses.Analysis, "GET", path("models", model, "analyses", id))

    @listing
    def analyses(self, model: str, *, kind: str | None = None) -> Pages[responses.Analysis]:
        """Iterate over the analyses of a model, newest first, without their results."""
        return Pages(responses.Analysis, path("models", model, "analyses"), without_none({"kind": kind}))

    def run_analysis(self, model: str, body: Mapping[str, Any], timeout: float | None) -> Flow[responses.Analysis]:
        """Request an analysis, and wait for its job if there is one."""
        place = path("models", model, "analyses")
        found = yield from self.ask(dict[str, Any], "POST", place, body)
        if "result" in found:
            return msgspec.convert(found, responses.Analysis)
        started = msgspec.convert(found, responses.StartedAnalysis)
        yield from await_job(self, started.job, None, timeout)
        return (yield from self.ask(responses.Analysis, "GET", path("models", model, "analyses", started.id)))
