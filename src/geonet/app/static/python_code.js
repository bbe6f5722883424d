// Code that computes just what is on the page.

import { deflated, textOf } from "./bytes.js";
import { bytesIn } from "./server.js";

const WIDTH = 88;

// setup: as it is asked of the server; t: the time of the slider.
export async function pythonOf({ shape, source, target, solver, epsilon }, t) {
  const options = epsilon === null ? "" : `, epsilon=${epsilon}`;
  return `import base64
import zlib

import numpy as np

import geonet


def drawn(text):
    values = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2")
    return geonet.Density(values.reshape(${tuple(shape)}).astype(float), geonet.Grid(${tuple(shape)}))


source = drawn(${await quoted(source)})
target = drawn(${await quoted(target)})
path = geonet.geodesic(source, target, "${solver}"${options})
print(path.report)
frame = path.density(${t.toFixed(2)})
path.explore("morph.html")
`;
}

const tuple = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;

// A long text as lines that Python puts together again.
async function quoted(values) {
  const text = textOf(await deflated(bytesIn(values)));
  const lines = text.match(new RegExp(`.{1,${WIDTH}}`, "g"));
  return `\n${lines.map((line) => `    "${line}"`).join("\n")}\n`;
}
