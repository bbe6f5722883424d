// Everything that is asked of geonet. A refusal is an Error with the server's own sentence.

import { bytesOf, floatsAt, textOf } from "./bytes.js";

const CLIENT = Array.from(crypto.getRandomValues(new Uint8Array(8)), (n) => n.toString(16)).join("-");
const PARTICLES = 240;
let number = 0; // of what this page asked last

// setup: shape, source, target (Uint16Array), solver, epsilon, frames.
export function asked(setup, more = {}) {
  number += 1;
  const [source, target] = [setup.source, setup.target].map((values) => textOf(bytesIn(values)));
  return { ...setup, source, target, client: CLIENT, number, ...more };
}

export async function solve(question) {
  const { header, buffer, offset } = await parted(await posted("/solve", question));
  return { ...header, levels: new Uint8Array(buffer, offset) };
}

export async function report(question) {
  return (await posted("/report", question)).json();
}

export async function overlays(question) {
  const answer = await posted("/overlays", { ...question, particles: PARTICLES });
  const { header, buffer, offset } = await parted(answer);
  const particles = floatsAt(buffer, offset, header.particles);
  const after = offset + (particles ? particles.values.byteLength : 0);
  return { particles, potential: floatsAt(buffer, after, header.potential), why: header.why };
}

export async function exported(kind, question) {
  const answer = await posted(`/export/${kind}`, question);
  const name = /filename="([^"]+)"/.exec(answer.headers.get("content-disposition"))[1];
  return { blob: await answer.blob(), name };
}

export async function gallery(dimension, cells) {
  const { densities } = await (await fetched(`/gallery/${dimension}/${cells}`)).json();
  return densities.map((density) => ({ ...density, values: numbersIn(density.values) }));
}

export async function readFile(file, dimension, cells) {
  const where = new URLSearchParams({ name: file.name, dimension, cells });
  const answer = await fetched(`/read?${where}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  });
  const read = await answer.json();
  return { ...read, values: numbersIn(read.values) };
}

function posted(path, question) {
  return fetched(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
}

async function fetched(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("geonet does not answer; is `geonet app` still running?");
  }
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(error ?? `geonet refused: ${answer.status}.`), {
    status: answer.status,
  });
}

// Four bytes with the length of a JSON header, the header, and then numbers.
async function parted(answer) {
  const buffer = await answer.arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return { header, buffer, offset: 4 + length };
}

export function bytesIn(values) {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

export function numbersIn(text) {
  return new Uint16Array(bytesOf(text).buffer);
}
