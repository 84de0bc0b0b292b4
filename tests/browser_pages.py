"""Look at five pages of the documentation in a real browser: `python tests/browser_pages.py [folder of pictures]`.

Not part of the test suite. Needs Debian's chromium (`apt-get install chromium`) and the extra `docs`. Builds the site,
opens each page at the width of a desktop and of a phone, checks that every picture is loaded and that nothing is wider
than the screen, and writes a PNG of each view for people to look at. Ends with status 1 if a check fails, and says why
where there is no browser.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("index", "tutorials/graph_network", "results/sparse_kernels", "reference/sparloom.nn", "sparse_layers")
SCREENS = {"desktop": (1366, 1500), "phone": (390, 1500)}
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
         "--disable-web-security", "--virtual-time-budget=8000")
FRAME = """<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" src="{address}" style="border:0;width:{width}px;height:{height}px"></iframe>
<pre id="found" hidden></pre>
<script>
document.getElementById("page").onload = event => {{
  const page = event.target.contentDocument;
  document.getElementById("found").textContent = JSON.stringify({{
    title: page.title,
    width: page.documentElement.scrollWidth,
    pictures: page.images.length,
    missing: [...page.images].filter(each => !each.complete || !each.naturalWidth).map(each => each.src),
  }});
}};
</script>"""


def look(browser: str, page: Path, picture: Path, size: tuple[int, int]) -> dict[str, object]:
    """Open a page in a frame of this size, which may be narrower than a window; write a picture of it.

    Returns:
        Title, width of the content, number of pictures and addresses of those that are missing.
    """
    width, height = size
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder) / "frame.html"
        frame.write_text(FRAME.format(address=page.as_uri(), width=width, height=height), encoding="utf-8")
        command = [browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--window-size={max(width, 500)},{height}"]
        printed = subprocess.run([*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=120,
                                 check=True).stdout
        subprocess.run([*command, f"--screenshot={picture}", frame.as_uri()], capture_output=True, timeout=120,
                       check=True)
    found = re.search(r'<pre id="found"[^>]*>(.*?)</pre>', printed, re.DOTALL)
    return json.loads(html.unescape(found[1]))


def faults(found: dict[str, object], width: int) -> list[str]:
    """Say what is wrong with a view."""
    wrong = [f"picture not loaded: {source}" for source in found["missing"]]
    if found["width"] > width:
        wrong.append(f"{found['width']} pixels wide on a screen of {width}")
    return wrong


def main(folder: Path) -> int:
    """Look at all pages; returns the number of faults."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.stdout.write("skipped: no chromium (apt-get install chromium)\n")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory() as site:
        build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=site))
        for page in PAGES:
            for screen, size in SCREENS.items():
                picture = folder / f"{page.replace('/', '_')}_{screen}.png"
                found = look(browser, Path(site) / f"{page}.html", picture, size)
                wrong = faults(found, size[0])
                count += len(wrong)
                sys.stdout.write(f"{page}, {screen}: {found['title']}, {found['pictures']} pictures, "
                                 f"{'; '.join(wrong) or 'fine'}\n")
    sys.stdout.write(f"pictures: {folder}\n")
    return count


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if sys.argv[1:] else ROOT / "outputs" / "browser").resolve()) > 0)
