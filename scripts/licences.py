"""Write what `feedline[all]` depends on: a bill of materials, a table of all licences, and the page of the docs.

Run it as `make sbom`. It makes an environment with nothing but the wheel in dist/ and its dependencies, and writes
`dist/feedline-VERSION.cdx.json` (CycloneDX) and `dist/licences.csv`, which are published with a release but not
committed, since they name the versions of the day. `docs/start/licences.md` has no versions, and is committed.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.dist_test import CONSTRAINTS, ROOT, extras_for_users, wheel

PAGE = ROOT / "docs" / "start" / "licences.md"
BEGIN, END = "<!-- licences: begin -->\n", "<!-- licences: end -->\n"
_WORDS = {
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "BSD": "BSD",
    "BSD-3-Clause License": "BSD-3-Clause",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "OpenLDAP Public License": "OLDAP-2.8",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Short names of licences, as far as packages write them out."""


def direct_dependencies() -> dict[str, list[str]]:
    """Return the packages that the package and its extras for users name, and the extras that name each."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found: dict[str, list[str]] = {}
    for name in re.findall(r'^dependencies = \["([\w-]+)', text, re.MULTILINE):
        found[name] = []
    part = text.partition("[project.optional-dependencies]")[2]
    for extra in extras_for_users():
        listed = re.search(rf"^{extra} = \[(.*?)\](?=\s*(#.*)?$)", part, re.MULTILINE | re.DOTALL)
        for name in re.findall(r'"([\w-]+)', listed[1] if listed else ""):
            if name != "feedline":
                found.setdefault(name, []).append(extra)
    return found


def table_of(licences: Mapping[str, str], dependencies: Mapping[str, Iterable[str]]) -> str:
    """Return the table of the docs. Packages without a known licence are listed as such, never left out."""
    rows = [
        f"| {name} | {licences.get(normal(name), 'not known')} | {', '.join(f'`{e}`' for e in extras) or 'always'} |"
        for name, extras in sorted(dependencies.items())
    ]
    return "\n".join(["| package | licence | comes with |", "|---|---|---|", *rows, ""])


def normal(name: str) -> str:
    """Return the name of a package as the package index compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def short(licence: str) -> str:
    """Return a licence in the words of SPDX, as far as they are known; of several, each once."""
    parts = [part.strip().splitlines()[0] for part in licence.split(";") if part.strip()]
    known = dict.fromkeys(_WORDS.get(part, part) for part in parts)
    return " and ".join(known) or "not known"


def updated(page: str, table: str) -> str:
    """Return the page with another table."""
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    """Write all three; return the exit status."""
    out = ROOT / "dist"
    built = wheel()
    version = built.name.split("-")[1]
    bill = out / f"feedline-{version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="feedline-sbom-") as folder:
        venv.create(folder)  # without pip, which is nothing that feedline needs
        python = Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python")
        pip = (Path(sys.executable), "-m", "pip", "--python", python, "install", "--quiet")
        _run(*pip, "-c", CONSTRAINTS, f"{built}[all]")
        options = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible", "-o", bill)
        _run("cyclonedx-py", "environment", *options, python)
        _run(*pip, "--no-deps", "torchvision")  # of the extra that `all` leaves out; for its licence
        told = _run("pip-licenses", f"--python={python}", "--format=json", "--from=mixed", "--with-urls")
    rows = sorted(json.loads(told), key=lambda row: row["Name"].lower())
    (out / "licences.csv").write_text(csv_of(rows), "utf-8")
    licences = {normal(row["Name"]): short(row["License"]) for row in rows}
    PAGE.write_text(updated(PAGE.read_text("utf-8"), table_of(licences, direct_dependencies())), "utf-8")
    sys.stdout.write(f"dist/{bill.name}, dist/licences.csv: {len(rows)} packages; {PAGE.relative_to(ROOT)}\n")
    return 0


def csv_of(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the names, versions, licences and addresses of packages as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["package", "version", "licence", "address"])
    writer.writerows([row["Name"], row["Version"], short(row["License"]), row["URL"]] for row in rows)
    return file.getvalue()


def _run(program: object, *arguments: object) -> str:
    """Run a program, or a tool that is installed beside this Python; return what it prints."""
    named = Path(sys.executable).with_name(program) if isinstance(program, str) else program
    command = [str(named), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
