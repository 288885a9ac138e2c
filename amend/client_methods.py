"""Decorators that turn one description of a request into a method of both clients.

The synchronous client runs the request; the asynchronous client returns a coroutine that does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from amend.listings import AsyncListing, Listing
from amend.requests import Flow, Pages

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """The synchronous client."""

    def run(self, flow: Flow[T], /) -> T: ...

    def walk(self, pages: Pages[T], /) -> Listing[T]: ...


class AsyncRunner(Protocol):
    """The asynchronous client."""

    async def run(self, flow: Flow[T], /) -> T: ...

    def walk(self, pages: Pages[T], /) -> AsyncListing[T]: ...


class ClientMethod(Generic[P]):
    """A descriptor that behaves like a method and keeps the decorated function's name, docstring and signature."""

    def __init__(self, make: Callable[Concatenate[Any, P], Any]) -> None:
        self.make = make
        functools.update_wrapper(self, make)
        self.__signature__ = public_signature(make)

    def __call__(self, client: Any, *arguments: P.args, **options: P.kwargs) -> Any:
        """Call as a function of the class. Without it, ``help`` would not list the method."""
        return self.__get__(client, type(client))(*arguments, **options)

    def __get__(self, client: Any, owner: type) -> Any:
        raise NotImplementedError


class operation(ClientMethod[P], Generic[P, T]):  # noqa: N801 - used as a decorator
    """Turns a method that builds a flow into one that returns the flow's result, or a coroutine of it."""

    make: Callable[Concatenate[Any, P], Flow[T]]

    def __init__(self, make: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return bind(self, client, lambda flow: client.run(flow)) if client is not None else self


class listing(ClientMethod[P], Generic[P, T]):  # noqa: N801 - used as a decorator
    """Turns a method that names a list into one that iterates over its items, page by page."""

    make: Callable[Concatenate[Any, P], Pages[T]]

    def __init__(self, make: Callable[Concatenate[Any, P], Pages[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Runner, owner: type) -> Callable[P, Listing[T]]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, AsyncListing[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return bind(self, client, lambda pages: client.walk(pages)) if client is not None else self


def bind(descriptor: ClientMethod[...], client: Any, run: Callable[[Any], Any]) -> Callable[..., Any]:
    """The method bound to a client."""

    @functools.wraps(descriptor.make)
    def method(*arguments: Any, **options: Any) -> Any:
        return run(descriptor.make(client, *arguments, **options))

    _, *parameters = descriptor.__signature__.parameters.values()
    returned = descriptor.__signature__.return_annotation
    if returned.startswith("Listing[") and hasattr(client, "__aenter__"):
        returned = f"Async{returned}"
    method.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # type: ignore[attr-defined]
    return method


def public_signature(make: Callable[..., Any]) -> inspect.Signature:
    """The signature with the type that callers get in place of the flow or the pages."""
    signature = inspect.signature(make)
    returned = str(signature.return_annotation)  # a string, since annotations are not evaluated
    returned = returned.removeprefix("Flow[").removesuffix("]") if returned.startswith("Flow[") else returned
    return signature.replace(return_annotation=returned.replace("Pages[", "Listing["))
