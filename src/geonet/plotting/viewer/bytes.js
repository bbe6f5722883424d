// Numbers as they travel: base64, little-endian, some of them deflated.

export function bytesOf(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function textOf(bytes) {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 4096) {
    binary += String.fromCharCode(...bytes.subarray(i, i + 4096));
  }
  return btoa(binary);
}

export const inflated = (bytes) => piped(bytes, new DecompressionStream("deflate"));

export const deflated = (bytes) => piped(bytes, new CompressionStream("deflate"));

async function piped(bytes, through) {
  const stream = new Blob([bytes]).stream().pipeThrough(through);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Float32 numbers of `shape` from a place in a buffer; null where there is no shape.
export function floatsAt(buffer, offset, shape) {
  if (!shape) return null;
  const count = shape.reduce((product, n) => product * n, 1);
  return { shape, values: new Float32Array(buffer.slice(offset, offset + 4 * count)) };
}
