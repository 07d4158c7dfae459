"""The explorer's JSON as objects: checked by the types that the server describes its responses with."""

from typing import get_type_hints

from pydantic import BaseModel, create_model
from typing_extensions import is_typeddict

from clearhead.explore import answers


class Schemas:
    """The types of clearhead.explore.answers as pydantic models, whose fields are attributes."""

    def __init__(self):
        self._models = {}

    def __getattr__(self, name):
        return self.model(getattr(answers, name))

    def model(self, shape):
        """The pydantic model of a TypedDict; the same each time, so that results can be compared."""
        if shape.__name__ not in self._models:
            fields = {}
            for name, hint in get_type_hints(shape).items():
                given = name in shape.__required_keys__
                fields[name] = (self.field(hint), ... if given else None)
            self._models[shape.__name__] = create_model(shape.__name__, __base__=BaseModel, **fields)
        return self._models[shape.__name__]

    def field(self, hint):
        """A type in which each TypedDict is its pydantic model."""
        if is_typeddict(hint):
            return self.model(hint)
        parts = getattr(hint, "__args__", ())
        if not any(map(self.holds_shape, parts)):
            return hint
        changed = tuple(map(self.field, parts))
        if getattr(hint, "__origin__", None) is None:  # a union, X | None
            whole = changed[0]
            for part in changed[1:]:
                whole = whole | part
            return whole
        return hint.__origin__[changed]

    def holds_shape(self, hint):
        return is_typeddict(hint) or any(map(self.holds_shape, getattr(hint, "__args__", ())))


schemas = Schemas()
