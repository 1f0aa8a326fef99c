"""Which sample a file belongs to, and which field it is: the rules of the webdataset package."""

from __future__ import annotations

import re

_META = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Return the key and the field that the name of a file stands for; None if it belongs to no sample.

    The key is everything up to the first dot of the last part of the path; the field is the rest in lower case. Files
    without an extension, those whose name begins with a dot, and those in folders named `__name__` belong to no sample.
    In a folder, a hidden file belongs to a sample named as the folder: `a/.b` is field `b` of `a/`, odd as that is. A
    name is never used as a path: one like `../../x.jpg` is a key like any other.

    Example:
        >>> split_name("train/0001.seg.PNG"), split_name("../../x.jpg"), split_name("__meta__.json")
        (('train/0001', 'seg.png'), ('../../x', 'jpg'), ('__meta__', 'json'))
        >>> split_name("README"), split_name(".hidden"), split_name("__meta__/a.txt")
        (None, None, None)
    """
    if name.startswith("__") and _META.match(name):
        return None
    # What the package says with ^((?:.*/|)[^.]+)[.]([^/]*)$, whose time grows with the square of the name's length.
    dot = name.find(".")
    if (
        "/" in name[dot:]
    ):  # it is in the name of a folder, behind the last of which there has to be something without one
        dot = name.find(".", name.rfind("/"))
        start = name.find("/", name.rfind(".", 0, max(0, dot))) + 1
        if start >= dot or "\n" in name[:start]:
            return None
    return (name[:dot], name[dot + 1 :].lower()) if dot > 0 else None
