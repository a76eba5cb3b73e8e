"""Facts about a running server, each with the places that state it.

A fact is known if the places that state it agree, contradicted if they differ, and unknown if no
place states it. An absent page, field or counter states nothing: it is never read as "no".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from specbench.errors import RefusedError, ServerError
from specbench.inputs.address import Address
from specbench.inputs.pairing import Target

if TYPE_CHECKING:
    from specbench.servers.client import Client

GIVEN_K = "#k"  # the place of the user's K
MODEL_OPTION = "--served-model-name"
MOST_SHOWN = 20  # names of models in an error

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A fact as its places state it."""

    readings: tuple[tuple[str, T], ...] = ()  # place and value

    @classmethod
    def read(cls, place: str, *values: T | None) -> "Fact[T]":
        """A fact by one place; None: it does not state the fact."""
        return cls(tuple((place, value) for value in values if value is not None))

    @property
    def state(self) -> Literal["known", "unknown", "contradicted"]:
        num_values = len({value for _, value in self.readings})
        return "contradicted" if num_values > 1 else "known" if num_values else "unknown"

    @property
    def value(self) -> T | None:
        """The value if it is known."""
        return self.readings[0][1] if self.state == "known" else None

    @property
    def places(self) -> str:
        return ", ".join(dict.fromkeys(place for place, _ in self.readings))

    def __add__(self, other: "Fact[T]") -> "Fact[T]":
        return Fact((*self.readings, *other.readings))

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(f"{value} ({place})" for place, value in self.readings))


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """Facts that a running server reports; None, "" or absent: unknown."""

    version: str
    model: str  # the name that requests must use
    k: Fact[int] = Fact()  # 0: without speculation
    drafts: Fact[bool] = Fact()  # whether it speculates; not every engine reports K
    prefix_cache: Fact[str] = Fact()  # off, on or "by request"
    kv_tokens: int | None = None  # capacity of its KV cache
    context: int | None = None  # tokens of a request and its output at most
    settings: Mapping[str, str] = field(default_factory=dict)  # effective ones, for provenance

    @property
    def places(self) -> dict[str, str]:
        """Where each known fact was read."""
        return {n: fact.places for n, fact in self._named.items() if fact.state == "known"}

    @property
    def _named(self) -> Mapping[str, Fact[Any]]:
        return {"K": self.k, "drafting": self.drafts, "prefix cache": self.prefix_cache}

    def at(self, address: Address) -> "ServerFacts":
        """The facts with the K of the address, so that K is known.

        ServerError if K is unknown, or if a fact is contradicted.
        """
        k = self.k + Fact.read(GIVEN_K, address.k)
        drafts = self.drafts + _drafting(k)
        for name, fact in replace(self, k=k, drafts=drafts)._named.items():
            if fact.state == "contradicted":
                raise ServerError(
                    f"{address.root}: {name} is contradicted: {fact}; correct the address, or the "
                    "server"
                )
        if k.value is None:
            drafting = "it drafts, and its K" if drafts.value else "its K"
            choices = [f"{address.root}{GIVEN_K}=4"]
            choices += [] if drafts.value else [f"{address.root}{GIVEN_K}=0 if it does not draft"]
            raise ServerError(
                f"{address.root}: {drafting} is unknown; add it: {', '.join(choices)}"
            )
        if self.k.readings:  # then the K of the address may have been taken from there
            k, drafts = self.k, self.drafts + _drafting(self.k)
        return replace(self, k=k, drafts=drafts)


def _drafting(k: Fact[int]) -> Fact[bool]:
    """Whether a server drafts, by its K."""
    return Fact(tuple((place, value > 0) for place, value in k.readings))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelNames:
    """Which of the models that a server lists is measured."""

    served: str | None = None  # that the user names
    target: tuple[str, ...] = ()  # that a server may have for the target

    @classmethod
    def of(cls, target: Target, served: str | None) -> "ModelNames":
        source = target.model.source.removeprefix("demo:")
        return cls(served=served, target=(target.name, source, target.model.location))

    def fits(self, listed: str) -> bool:
        """Whether a listed name is the target's name, id, folder or file."""
        known, name = map(_last_parts, (self.target, [listed]))
        return name <= known

    async def card(self, client: "Client") -> Mapping[str, Any]:
        """The card of the model to measure; ServerError without one, or if several may be meant.

        Names of one model (`root`) are one choice. An adapter (`parent`) is chosen only by name.
        """
        try:
            cards = await client.model_cards()
        except RefusedError:
            if self.served is None:
                raise
            cards = []  # it lists none: the user's name is not contradicted
        if self.served is not None:
            cards = cards or [{"id": self.served}]
            choices = [card for card in cards if card["id"] == self.served]
        else:
            bases = [card for card in cards if not card.get("parent")]
            exact = [card for card in cards if card["id"] in self.target]
            choices = exact or [card for card in cards if self.fits(card["id"])] or bases or cards
        if len({card.get("root") or card["id"] for card in choices}) == 1:
            return choices[0]
        if not cards:
            client.fail("its /v1/models names no model; is this an OpenAI-compatible server?")
        ids = [card["id"] for card in cards]
        shown = ", ".join(ids[:MOST_SHOWN]) + (", ..." if len(ids) > MOST_SHOWN else "")
        wanted = f"{MODEL_OPTION} {self.served} is not" if self.served else "the target is not one"
        client.fail(f"{wanted} of its models: {shown}; choose one with {MODEL_OPTION} NAME")


def _last_parts(names: Iterable[str]) -> set[str]:
    return {PurePath(name).name.lower().removesuffix(".gguf") for name in names}
