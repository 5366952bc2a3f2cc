#!/usr/bin/env python3
"""The reference (scripts/reference), built anew: without a warning of Doxygen; every public function, macro, struct and
enum has a page with a text of its own, in HTML and as a manual page; every link within it leads somewhere; groff has
nothing to say against the manual pages, and man shows them. Skipped without Doxygen.
usage: reference_check.py     (status 77: skipped)

Seen to fail: with the comment of tn_matmul taken away; with two sections of ops.h called "products"; with names behind
@ref that do not exist; with group__error.html removed before the links were followed; with ".bogus" in manual pages.
"""

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "docs" / "reference"))
import headers  # noqa: E402

passed, complaints = 0, []


def check(good, complaint):
    global passed
    if good:
        passed += 1
    else:
        complaints.append(complaint)


def plain(text):
    return html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\xa0", " ").strip()


def described(pages):
    """name -> the text below its title, of all group pages."""
    found = {}
    for page in pages:
        parts = re.split(r'<h2 class="memtitle">', page.read_text())[1:]
        for part in parts:
            title = plain(part.split("</h2>")[0]).lstrip("◆").strip().removesuffix("()")
            text = re.search(r'<div class="memdoc">(.*?)(?:<table class="fieldtable">|</div><!-- |<h2 class="|\Z)', part, re.S)
            found[title] = plain(text[1]) if text else ""
    return found


def check_names(folder):
    groups = [group.id for path in headers.headers() for group in headers.read(path)[1]]
    check(len(set(groups)) == len(groups), f"two groups have one name: {[g for g in groups if groups.count(g) > 1]}")
    texts = described(folder.glob("html/group__*.html"))
    for path in headers.headers():
        for group in headers.read(path)[1]:
            for d in group.declarations:
                name = d.name or "anonymous enum"
                brief = headers.brief(d.comment, d.name)[0]
                check(brief, f"{path.name}: {name} has no comment that begins with a sentence")
                if d.name:
                    check(texts.get(d.name), f"{name} has no text in the HTML")
                    manual = folder / "man" / "man3" / f"{name}.3"
                    check(manual.exists() and f"{name} \\- " in manual.read_text(), f"{name} has no manual page with a summary")
                for code, comment in d.fields if d.kind == "struct" else ():
                    field = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?(?:,|$)", code)
                    check(comment or re.search(rf"\b{field[1] or field[2]}\b", " ".join(d.comment)) or "," in code,
                          f"{name}: nothing is said of {code}")


def check_links(folder):
    """Every relative link in the HTML, in the list on the left and in the search has a file, and the place in it."""
    files = {p.relative_to(folder).as_posix(): p.read_text(errors="replace")
             for p in folder.rglob("*") if p.suffix in (".html", ".js")}
    places = {name: set(re.findall(r'\b(?:id|name)="([^"]*)"', text)) for name, text in files.items()}
    links = 0
    for name, text in files.items():
        found = re.findall(r'\b(?:href|src)="([^"]*)"', text) if name.endswith(".html") else \
            re.findall(r"""["']((?:\.\./)?[\w./]+\.html(?:#\w+)?)["']""", text)
        for link in found:
            link = html.unescape(link)
            if re.match(r"https?:|javascript:|mailto:|#$", link):
                continue
            target, _, place = link.partition("#")
            base = folder / (Path(name).parent if name.endswith(".html") or name.startswith("search/") else "")
            file = (base / target).resolve() if target else folder / name
            links += 1
            known = file.exists() and (not place or place in places.get(file.relative_to(folder).as_posix(), ()))
            check(known, f"{name}: the link {link} leads nowhere")
    check(links > 5000, f"only {links} links were found")


def check_manual(folder):
    pages = sorted((folder / "man3").glob("*.3"))
    names = {p.stem for p in pages}
    for page in pages:
        for other in re.findall(r"^\.BR (\w+) \(3\)", page.read_text(), re.M):
            check(other in names, f"{page.name} refers to {other}(3), which is not there")
    if shutil.which("groff"):
        said = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *pages], capture_output=True, text=True).stderr
        check(not said, f"groff: {said[:500]}")
        shown = subprocess.run(["groff", "-man", "-Tascii", "-P-cbou", folder / "man3" / "tn_linear.3"],
                               capture_output=True, text=True).stdout
        for line in ("tn_linear - y = x W^T + b", "tn_tensor *tn_linear(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);",
                     "Errors    sizes that do not fit; dtypes that differ or are not floating"):
            check(line in shown, f"tn_linear(3) does not show: {line}")


if not shutil.which("doxygen"):
    print("skipped: there is no doxygen")
    raise SystemExit(77)
with tempfile.TemporaryDirectory() as work:
    folder = Path(work) / "reference"
    built = subprocess.run([ROOT / "scripts" / "reference", folder], capture_output=True, text=True)
    print(built.stdout + built.stderr, end="")
    check(built.returncode == 0 and not built.stderr, "scripts/reference failed, or Doxygen warned")
    if built.returncode == 0:
        check_names(folder)
        check_links(folder / "html")
        check_manual(folder / "man")
        search = "".join(p.read_text() for p in (folder / "html" / "search").glob("*.js"))
        check("tn_scaled_dot_product_attention" in search, "the search does not know tn_scaled_dot_product_attention")
for line in complaints[:50]:
    print(line)
print(f"{passed} passed, {len(complaints)} failed")
raise SystemExit(len(complaints) > 0)
