"""A store that loses the answer to one create: the object exists afterwards, and the caller does not know."""

from collections.abc import Callable
from typing import Any, Literal

from lance_memwal.errors import ObjectExistsError, UnavailableError
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock

Answer = Literal["error", "exists", "last error"]
ANSWERS: tuple[Answer, ...] = ("error", "exists", "last error")


class LostAnswer(WrappedStore):
    """Loses the answer to the next create below `prefix`; `after` runs right after the create."""

    def __init__(self, inner: ObjectStore, answer: Answer) -> None:
        super().__init__(inner)
        self.answer = answer
        self.prefix: str | None = None
        self.after: Callable[[], object] | None = None

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        result = call(path, *rest, **options)
        if kind != "put_new" or self.prefix is None or not path.startswith(self.prefix):
            return result
        self.prefix = None
        if self.after is not None:
            self.after()
        if self.answer == "exists":  # a retry below this store met the object
            raise ObjectExistsError(path)
        raise UnavailableError("the answer was lost")


def losing(uri: str, answer: Answer) -> tuple[LostAnswer, Location]:
    """The table at `uri` through such a store; after "last error" nothing is retried."""
    stores: list[LostAnswer] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(LostAnswer(inner, answer))
        return stores[0]  # type: ignore[return-value]

    policy = RetryPolicy(max_attempts=1) if answer == "last error" else None
    location = resolve(uri, wrap=wrap, policy=policy, clock=SkippingClock())
    return stores[0], location
