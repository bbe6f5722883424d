// Encoding of numbers: base64, little-endian, deflate.

export function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function encodeBase64(bytes) {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 4096) {
    binary += String.fromCharCode(...bytes.subarray(i, i + 4096));
  }
  return btoa(binary);
}

export const inflate = (bytes) => pipeBytes(bytes, new DecompressionStream("deflate"));

export const deflate = (bytes) => pipeBytes(bytes, new CompressionStream("deflate"));

async function pipeBytes(bytes, through) {
  const stream = new Blob([bytes]).stream().pipeThrough(through);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Float32 numbers of `shape` at an offset in a buffer; null if there is no shape.
export function readFloats(buffer, offset, shape) {
  if (!shape) return null;
  const count = shape.reduce((product, n) => product * n, 1);
  return { shape, values: new Float32Array(buffer.slice(offset, offset + 4 * count)) };
}
