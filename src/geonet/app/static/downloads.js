// Buttons to download files, and to copy a link or Python code.

import { createButton } from "../../plotting/viewer/view.js";
import { createRequest, download } from "./api.js";
import { encodePermalink } from "./permalink.js";
import { generatePython } from "./python_code.js";

// page: has the setup, titles of the drawings, `state()` and `showMessage(text)`.
export function showDownloads(root, page) {
  const { isPath } = page.setup;
  const files = {
    gif: "Animation (.gif)",
    png: "Figure (.png)",
    npz: `${isPath ? "Path" : "Barycenter"} (.npz)`,
    html: "Web page (.html)",
  };
  for (const title of page.titles) {
    files[title.toLowerCase().replace(" ", "-")] = `${title} (.npy)`;
  }
  const actions = Object.entries(files).map(([kind, label]) => [label, () => saveFile(kind, label, page)]);
  actions.push(["Copy link", () => copyLink(page)], ["Copy Python code", () => copyCode(page)]);
  root.replaceChildren(...actions.map(([label, action]) => createButton(label, label, action)));
}

async function saveFile(kind, label, page) {
  page.showMessage(`Preparing ${label} …`);
  try {
    const { blob, name } = await download(kind, createRequest(page.state()));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    page.showMessage(`Saved ${name}.`);
  } catch (error) {
    page.showMessage(error.message);
  }
}

async function copyLink(page) {
  history.replaceState(null, "", await encodePermalink(page.state(), page.view.player.t));
  await copyText(location.href, "Link copied.", page);
}

async function copyCode(page) {
  const code = await generatePython(page.state(), page.view.player.t);
  await copyText(code, "Python code copied.", page);
}

async function copyText(text, message, page) {
  try {
    await navigator.clipboard.writeText(text);
    page.showMessage(message);
  } catch {
    page.showMessage("The browser blocked copying; allow this page to use the clipboard.");
  }
}
