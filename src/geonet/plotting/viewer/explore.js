// The start of a file that stands alone: its data are in the page, deflated.

import { bytesOf, floatsAt, inflated } from "./bytes.js";
import { showFacts } from "./facts.js";
import { Frames } from "./frames.js";
import { View, listenToKeys } from "./view.js";

async function explore() {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  const { buffer } = await inflated(bytesOf(scene.numbers));
  const size = scene.count * scene.shape.reduce((product, n) => product * n, 1);
  const frames = new Frames({ ...scene, levels: new Uint8Array(buffer, 0, size) });
  const particles = floatsAt(buffer, size, scene.particles);
  const after = size + (particles ? particles.values.byteLength : 0);
  const layers = { particles, potential: floatsAt(buffer, after, scene.potential) };
  const view = new View(document.getElementById("view"), bytesOf(scene.colours));
  view.show(frames, layers, scene.why);
  showFacts(document.getElementById("facts"), scene);
  listenToKeys(view.player);
}

explore();
