"""What only Windows has: the parts that are data everywhere, the rest on a Windows CPython."""
