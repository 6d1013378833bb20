"""The tests: the folders mirror those of `exporter`; `support` is shared, `system` is the whole, `project` the rest."""

# pytest reports unraisable exceptions with tracemalloc, which it imports when the first one occurs. A garbage
# collection during that import may raise a second one, whose report would meet a half-imported module.
import tracemalloc  # noqa: F401  # imported for its effect alone
