"""The HTTP interface of a bundle: routes, answers, health and metrics."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from archipel_serve.models import Answers, Models
from archipel_serve.server.access import RateLimit, owner
from archipel_serve.server.batching import Batcher, Features
from archipel_serve.server.bodies import read_asked
from archipel_serve.server.forwarding import Site, forward
from archipel_serve.server.openapi import document
from archipel_serve.server.queries import Asked, Limits, RefusedError
from archipel_serve.watching.decisions import DecisionLog

log = logging.getLogger("archipel_serve")
Answer = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Settings:
    """How a bundle is served.

    Args:
        keys: names of the callers by the SHA-256 of their API keys; empty: nobody needs one.
        limits: of a request.
        rate: requests a second of each caller; ``None``: without a limit.
        sites: the sites' own servers that answer in place of the bundle's models; empty: the bundle answers.
        decisions: where the router's decisions are logged; ``None``: nowhere.
    """

    keys: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    rate: float | None = None
    sites: dict[str, Site] = field(default_factory=dict)
    decisions: DecisionLog | None = None


class Service:
    """Answers requests by the models, in batches.

    Args:
        models: of the bundle.
        settings: how it is served.
    """

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings = models, settings
        self.registry = CollectorRegistry()
        self.requests = Counter("archipel_requests", "Requests", ["endpoint", "status"], registry=self.registry)
        self.queries = Counter("archipel_queries", "Queries answered", ["endpoint"], registry=self.registry)
        self.chosen = Counter(
            "archipel_routed", "Queries by the site that they went to", ["site"], registry=self.registry
        )
        bounds = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
        self.seconds = Histogram(
            "archipel_request_seconds", "Duration", ["endpoint"], buckets=bounds, registry=self.registry
        )
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        batches = Histogram("archipel_batch_queries", "Queries in a batch", buckets=sizes, registry=self.registry)
        self.batcher = Batcher(models, batches.observe)
        self.rate = RateLimit(settings.rate)
        self.reading = asyncio.Semaphore(4)

    async def asked(self, request: Request) -> Asked:
        """Check the caller, and read what is asked."""
        caller = request.client.host if request.client else "unknown"
        if self.settings.keys:
            caller = owner(self.settings.keys, request.headers)
        if not self.rate.allows(caller):
            raise RefusedError(
                429, f"More than {self.settings.rate:g} requests a second; ask again in a second.", {"Retry-After": "1"}
            )
        return await read_asked(request, self.models.manifest, self.settings.limits, self.reading)

    async def route(self, request: Request) -> dict[str, Any]:
        """Answer ``POST /route``."""
        asked = await self.asked(request)
        posterior = await self._posterior(asked)
        self.queries.labels("route").inc(asked.count)
        return {"routes": self._routes(posterior, asked.top)}

    async def answer(self, request: Request) -> dict[str, Any]:
        """Answer ``POST /answer``."""
        asked = await self.asked(request)
        manifest = self.models.manifest
        try:
            site = None if asked.site is None else self.models.index(asked.site)
        except ValueError as error:
            raise RefusedError(422, _sentence(error)) from error
        if site is None and manifest.site is not None:
            site = manifest.names.index(manifest.site)
        if not asked.count:
            return {"answers": []}
        posterior = None
        features, log_posterior = await self.batcher.compute(asked)
        if site is None and self.models.routes:
            posterior = self._decided(asked, features, log_posterior)
        if self.settings.sites and (site is not None or posterior is not None):
            answers = await self._forwarded(asked, features, site, posterior)
        else:
            inline = asked.count == 1 and self.batcher.short and (site is not None or posterior is not None)
            given = (asked, features, site, posterior)
            found = self._answers(*given) if inline else await self.batcher.run(self._answers, *given)
            _finite(found.values)
            answers = self._shown(found)
        if posterior is not None:
            routes = self._routes(posterior, asked.top)
            answers = [{**answer, **route} for answer, route in zip(answers, routes, strict=True)]
        for answer in answers:
            self.chosen.labels(answer["answered_by"]).inc()
        self.queries.labels("answer").inc(asked.count)
        return {"answers": answers}

    async def _posterior(self, asked: Asked) -> NDArray[Any]:
        if not self.models.routes:
            raise RefusedError(
                409, f"{self.models.manifest.method} doesn't route queries. Ask POST /answer, with a site by choice."
            )
        if not asked.count:
            return np.zeros((0, len(self.models.manifest.names)))
        return self._decided(asked, *await self.batcher.compute(asked))

    def _decided(self, asked: Asked, features: Features, log_posterior: NDArray[Any] | None) -> NDArray[Any]:
        """Return the posterior under the prior that is asked for, and log the decisions."""
        posterior = self._reweighted(log_posterior, asked)
        if self.settings.decisions is not None and log_posterior is not None:
            names = self.models.manifest.names
            sites = [names[i] for i in posterior.argmax(-1).tolist()]
            queries = features if asked.x is None else [asked.x]
            self.settings.decisions.add(queries, log_posterior, asked.prior, sites)
        return posterior

    def _reweighted(self, log_posterior: NDArray[Any] | None, asked: Asked) -> NDArray[Any]:
        if log_posterior is None:
            raise RefusedError(422, "The router takes queries, not features. Send the query.")
        try:
            return _finite(np.exp(self.models.reweighted(log_posterior, asked.prior)))
        except ValueError as error:
            raise RefusedError(422, _sentence(error)) from error

    def _answers(self, asked: Asked, features: Features, site: int | None, posterior: NDArray[Any] | None) -> Answers:
        try:
            if site is not None:
                name = self.models.manifest.names[site]
                return self.models.answered(self.models.answer(site, features), [name] * asked.count)
            if posterior is not None:
                return self.models.by_site(posterior.argmax(-1), features)
            if asked.x is None:
                raise RefusedError(422, "Without a router, features are answered by a site: name one.")
            return self.models.without_router(asked.x, features)
        except ValueError as error:
            raise RefusedError(422, _sentence(error)) from error

    async def _forwarded(
        self, asked: Asked, features: Features, site: int | None, posterior: NDArray[Any] | None
    ) -> list[dict[str, Any]]:
        names = self.models.manifest.names
        if site is not None:
            order = [[site]] * asked.count
        else:
            assert posterior is not None
            order = np.argsort(-posterior, axis=1, kind="stable").tolist()
        contents = {} if asked.x is None else {"x": asked.x.tolist()}
        shared = {k: v.tolist() for k, v in zip(self.models.manifest.features, features, strict=False)}
        return await asyncio.to_thread(forward, self.settings.sites, names, order, contents, shared)

    def _shown(self, found: Answers) -> list[dict[str, Any]]:
        classes = self.models.manifest.classes
        shown = []
        for i, (values, by) in enumerate(zip(found.values.tolist(), found.answered_by, strict=True)):
            if classes is None or found.labels is None:
                shown.append({"values": values, "answered_by": by})
            else:
                probabilities = dict(zip(classes, values, strict=True))
                shown.append({"label": found.labels[i], "probabilities": probabilities, "answered_by": by})
        return shown

    def _routes(self, posterior: NDArray[Any], top: int) -> list[dict[str, Any]]:
        names = self.models.manifest.names
        best = np.argsort(-posterior, axis=1, kind="stable")[:, :top]
        return [
            {
                "site": names[ids[0]],
                "probability": float(row[ids[0]]),
                "top": [{"site": names[i], "probability": float(row[i])} for i in ids],
            }
            for ids, row in zip(best.tolist(), posterior, strict=True)
        ]


def create_app(models: Models, settings: Settings | None = None) -> FastAPI:
    """Return the application that serves a bundle.

    Args:
        models: of the bundle.
        settings: how it is served; default: without keys.
    """
    service = Service(models, settings or Settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.stop()
        if service.settings.decisions is not None:
            service.settings.decisions.close()

    # Pages that load scripts from other servers are left out.
    app = FastAPI(title="archipel-serve", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    described = document(models.manifest)

    async def served(endpoint: str, answer: Answer, request: Request) -> Response:
        start, status = time.perf_counter(), 500
        try:
            content = await answer(request)
            status = 200
            return JSONResponse(content)
        except RefusedError as error:
            status = error.status
            return JSONResponse({"detail": error.detail}, status, error.headers)
        except Exception as error:
            # Its text and its variables may hold a query, and neither is logged.
            log.error("%s failed with %s", endpoint, type(error).__name__)
            return JSONResponse({"detail": "The server failed on this request; its log says where."}, 500)
        finally:
            seconds = time.perf_counter() - start
            service.requests.labels(endpoint, str(status)).inc()
            service.seconds.labels(endpoint).observe(seconds)
            log.info("%s %s %.1f ms", endpoint, status, 1000 * seconds)

    @app.post("/route")
    async def route(request: Request) -> Response:
        return await served("route", service.route, request)

    @app.post("/answer")
    async def answer(request: Request) -> Response:
        return await served("answer", service.answer, request)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        manifest = models.manifest
        return {"status": "ok", "method": manifest.method, "created": manifest.created, "site": manifest.site}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        try:
            if service.settings.keys:
                owner(service.settings.keys, request.headers)
        except RefusedError as error:
            return JSONResponse({"detail": error.detail}, error.status, error.headers)
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        return described

    return app


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    """Return what a model gave, or refuse queries so large that it overflows."""
    if not np.isfinite(values).all():
        raise RefusedError(422, "The model's answer isn't finite: a query lies far beyond the training data.")
    return values


def _sentence(error: BaseException) -> str:
    text = str(error)
    return text[:1].upper() + text[1:500]
