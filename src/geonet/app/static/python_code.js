// Python code that computes the path or barycenter on the page.

import { deflate, encodeBase64 } from "../../plotting/viewer/bytes.js";
import { toBytes } from "./api.js";

const WIDTH = 88;

// state: see main.js; t: the time.
export async function generatePython(state, t) {
  const { shape, densities, weights } = state;
  const texts = await Promise.all(densities.map(quote));
  return `import base64
import zlib

import numpy as np

import geonet


def decode(text):
    values = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u2")
    return geonet.Density(values.reshape(${formatTuple(shape)}) / 65535, geonet.Grid(${formatTuple(shape)}))


${(weights ? writeBarycenter : writePath)(texts, state, t)}`;
}

function writePath([source, target], { solver, epsilon, reach, growth }, t) {
  const options = { epsilon, reach, growth: growth && `"${growth}"` };
  return `source = decode(${source})
target = decode(${target})
path = geonet.geodesic(source, target, "${solver}"${formatOptions(options)})
print(path.report)
frame = path.density(${t.toFixed(2)})
path.explore("path.html")
`;
}

function writeBarycenter(texts, { weights, reach }) {
  const calls = texts.map((text) => `    decode(${text}),\n`).join("");
  return `densities = [
${calls}]
barycenter = geonet.barycenter(densities, [${weights.join(", ")}]${formatOptions({ reach })})
print(barycenter.report)
density = barycenter.density
barycenter.explore("barycenter.html")
`;
}

const formatTuple = (shape) => `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;

function formatOptions(options) {
  const given = Object.entries(options).filter(([, value]) => value !== null);
  return given.map(([name, value]) => `, ${name}=${value}`).join("");
}

// A long string literal on several lines.
async function quote(values) {
  const text = encodeBase64(await deflate(toBytes(values)));
  const lines = text.match(new RegExp(`.{1,${WIDTH}}`, "g"));
  return `\n${lines.map((line) => `    "${line}"`).join("\n")}\n`;
}
