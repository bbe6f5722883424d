// Entry point of the standalone page that barycenter.explore() writes; its data are in the page.

import { decodeBase64, inflate } from "./bytes.js";
import { readFields } from "./carry.js";
import { Frames } from "./frames.js";
import { showReport } from "./report_panel.js";
import { bindKeys } from "./view.js";
import { WeightView } from "./weight_view.js";

async function startWeights() {
  const data = JSON.parse(document.getElementById("path").textContent);
  const { buffer } = await inflate(decodeBase64(data.numbers));
  const size = data.count * data.shape.reduce((product, n) => product * n, 1);
  const frames = new Frames({ ...data, levels: new Uint8Array(buffer, 0, size) });
  const fields = readFields(buffer, size, data.count, data.fields);
  const root = document.getElementById("view");
  const view = new WeightView(root, decodeBase64(data.colours), data.table);
  view.show(frames, { ...data.table, fields });
  view.pad.move(data.table.start);
  showReport(document.getElementById("report"), data);
  bindKeys(view.pad);
}

startWeights();
