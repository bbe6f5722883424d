# %% [markdown]
# # The page, without a browser
#
# `geonet app` serves a page on which densities are drawn. Its server answers scripts, too: this one
# starts it, fetches three of the example drawings, and requests a picture of their barycenter.

# %%
import atexit
import json
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

command = [sys.executable, "-m", "geonet", "app", "--no-browser"]
app = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
atexit.register(app.terminate)
assert app.stdout is not None
line = app.stdout.readline()  # "geonet app runs at http://127.0.0.1:8765 (press Ctrl-C to stop)"
address = line.split()[4]
print(line.strip())

# %% [markdown]
# ## Drawings
#
# The page offers examples on any number of cells. A drawing is a text, the base64 form of 16-bit
# numbers, that is sent back unchanged.

# %%
with urlopen(f"{address}/gallery/2/64") as answer:
    examples = {entry["label"]: entry["values"] for entry in json.load(answer)}
print(f"{len(examples)} examples:", ", ".join(examples))

# %% [markdown]
# ## A barycenter
#
# One address answers with densities (`/solve`), another one with the bounds (`/report`), and others
# with files: `/download/png`, `gif`, `npz` and `html`.

# %%
problem = {
    "client": "script",
    "number": 1,
    "shape": [64, 64],
    "densities": [examples[label] for label in ("Heart", "Ring", "Star")],
    "weights": [0.4, 0.3, 0.3],
    "frames": 2,
    **dict.fromkeys(("solver", "epsilon", "reach", "growth")),  # options of paths
}


def post(path):
    """Send the drawings and return the answer."""
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(address + path, json.dumps(problem).encode(), headers)) as answer:
        return answer.read()


print(json.loads(post("/report"))["headline"])
Path("page.png").write_bytes(post("/download/png"))
app.terminate()
app.communicate()
