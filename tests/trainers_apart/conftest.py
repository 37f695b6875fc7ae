"""Without Composer or Ray, where the main tests run, its files are not even imported."""

from importlib.util import find_spec

collect_ignore_glob = [
    pattern
    for package, pattern in (("composer", "*composer*.py"), ("ray", "*ray*.py"))
    if find_spec(package) is None
]
