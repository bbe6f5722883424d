// Python code that computes the path on the page.

import { deflate, encodeBase64 } from "../../plotting/viewer/bytes.js";
import { toBytes } from "./api.js";

const WIDTH = 88;

// setup: see api.js; t: the time.
export async function generatePython({ shape, source, target, solver, epsilon }, t) {
  const options = epsilon === null ? "" : `, epsilon=${epsilon}`;
  return `import base64
import zlib

import numpy as np

import geonet


def decode(text):
    values = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2")
    return geonet.Density(values.reshape(${formatTuple(shape)}).astype(float), geonet.Grid(${formatTuple(shape)}))


source = decode(${await quote(source)})
target = decode(${await quote(target)})
path = geonet.geodesic(source, target, "${solver}"${options})
print(path.report)
frame = path.density(${t.toFixed(2)})
path.explore("path.html")
`;
}

const formatTuple = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;

// A long string literal on several lines.
async function quote(values) {
  const text = encodeBase64(await deflate(toBytes(values)));
  const lines = text.match(new RegExp(`.{1,${WIDTH}}`, "g"));
  return `\n${lines.map((line) => `    "${line}"`).join("\n")}\n`;
}
