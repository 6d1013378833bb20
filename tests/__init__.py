"""The tests: the folders mirror those of `exporter`; `support` is shared, `system` is the whole, `project` the rest."""

# pytest tells of what was raised where nobody could catch it with the help of tracemalloc, imported when it is needed;
# the garbage collector may strike again in the middle of that import, and the second telling then finds half a module.
import tracemalloc  # noqa: F401  # imported for its effect alone
