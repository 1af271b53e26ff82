"""A table that copies a record when it is first asked for, so that a database can be shared by all episodes."""

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView

from pydantic import BaseModel


class Overlay(MutableMapping[str, BaseModel]):
    """A table over a shared one, which never changes. Records that are only listed are not copied.

    A tool of tau2 changes records in place, after it has asked for them by their key; so that is where they are copied.
    """

    def __init__(self, base: Mapping[str, BaseModel], below: Mapping[str, BaseModel] | None = None) -> None:
        """Lay a table over `base`; `below` are records that take the place of those in `base`, and never change "
        "either."""
        self._base = base
        self._below = dict(below or {})
        self._own: dict[str, BaseModel] = {}

    def __getitem__(self, key: str) -> BaseModel:
        """Return a record that may be changed."""
        record = self._own.get(key)
        if record is None:
            record = self._shared(key).model_copy(deep=True)
            self._own[key] = record
        return record

    def __setitem__(self, key: str, record: BaseModel) -> None:
        self._own[key] = record

    def __delitem__(self, key: str) -> None:
        """Refuse: no tool deletes a record."""
        raise TypeError(f"{key} cannot be deleted: records of this table are only changed or added")

    def __iter__(self) -> Iterator[str]:
        """Yield the keys of the shared table, then new ones."""
        yield from self._base
        yield from (key for key in {**self._below, **self._own} if key not in self._base)

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in {**self._below, **self._own})

    def __contains__(self, key: object) -> bool:
        """Look for a key without copying its record."""
        return key in self._own or key in self._below or key in self._base

    def values(self) -> ValuesView[BaseModel]:
        """Return the records to look at, uncopied."""
        return {**self._base, **self._below, **self._own}.values()

    def items(self) -> ItemsView[str, BaseModel]:
        """Return keys and records to look at, uncopied."""
        return {**self._base, **self._below, **self._own}.items()

    def fork(self) -> "Overlay":
        """Return an independent table; both copy again what they change from now on."""
        self._below, self._own = {**self._below, **self._own}, {}
        return Overlay(self._base, self._below)

    def touched(self) -> Mapping[str, BaseModel]:
        """Return the records that were asked for or added; all others are as in the shared table."""
        return {**self._below, **self._own}

    def _shared(self, key: str) -> BaseModel:
        record = self._below.get(key)
        return self._base[key] if record is None else record
