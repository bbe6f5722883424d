// Requests to the server. A failed request is an Error with the message of the server.

import { decodeBase64, encodeBase64, readFloats } from "../../plotting/viewer/bytes.js";

const CLIENT = Array.from(crypto.getRandomValues(new Uint8Array(8)), (n) => n.toString(16)).join("-");
let number = 0; // of the last request

// state: see main.js; its densities are Uint16Arrays.
export function createRequest(state) {
  number += 1;
  const densities = state.densities.map((values) => encodeBase64(toBytes(values)));
  return { ...state, densities, client: CLIENT, number };
}

// Returns the header with the buffer and the offset of its numbers.
export async function solve(request) {
  const { header, buffer, offset } = await unpack(await postJson("/solve", request));
  const size = header.shape.reduce((product, n) => product * n, 1);
  return { ...header, size, buffer, offset };
}

export async function fetchReport(request) {
  return (await postJson("/report", request)).json();
}

export async function fetchOverlays(request) {
  const { header, buffer, offset } = await unpack(await postJson("/overlays", request));
  const particles = readFloats(buffer, offset, header.particles);
  const end = offset + (particles ? particles.values.byteLength : 0);
  const potential = readFloats(buffer, end, header.potential);
  return { particles, potential, missing: header.missing };
}

export async function download(kind, request) {
  const response = await postJson(`/download/${kind}`, request);
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition"))[1];
  return { blob: await response.blob(), name };
}

export async function fetchGallery(dimension, cells) {
  const densities = await (await send(`/gallery/${dimension}/${cells}`)).json();
  return densities.map((density) => ({ ...density, values: decodeUint16(density.values) }));
}

export async function uploadFile(file, dimension, cells) {
  const query = new URLSearchParams({ name: file.name });
  const response = await send(`/upload/${dimension}/${cells}?${query}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  });
  const { values, notes } = await response.json();
  return { values: decodeUint16(values), notes };
}

function postJson(path, request) {
  return send(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
}

async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer; check that `geonet app` is running.");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  const message = error ?? `The server answered with status ${response.status}; try again.`;
  throw Object.assign(new Error(message), { status: response.status });
}

// The length of a JSON header (uint32), the header, and numbers.
async function unpack(response) {
  const buffer = await response.arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return { header, buffer, offset: 4 + length };
}

export function toBytes(values) {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function decodeUint16(text) {
  return new Uint16Array(decodeBase64(text).buffer);
}
