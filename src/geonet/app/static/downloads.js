// Buttons to download files, and to copy a link or Python code.

import { createButton } from "../../plotting/viewer/view.js";
import { download } from "./api.js";
import { encodePermalink } from "./permalink.js";
import { generatePython } from "./python_code.js";

const FILES = {
  gif: "Animation (.gif)",
  png: "Figure (.png)",
  npz: "Path (.npz)",
  html: "Web page (.html)",
  source: "Source (.npy)",
  target: "Target (.npy)",
};

// getState: returns the setup, the time and a function that creates a request;
// showMessage: shows a sentence.
export function showDownloads(root, getState, showMessage) {
  for (const [kind, label] of Object.entries(FILES)) {
    root.append(createButton(label, label, () => saveFile(kind, getState, showMessage)));
  }
  root.append(
    createButton("Copy link", "Copy link", () => copyLink(getState, showMessage)),
    createButton("Copy Python code", "Copy Python code", () => copyCode(getState, showMessage)),
  );
}

async function saveFile(kind, getState, showMessage) {
  showMessage(`Preparing ${FILES[kind]} …`);
  try {
    const { blob, name } = await download(kind, getState().createRequest());
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    showMessage(`Saved ${name}.`);
  } catch (error) {
    showMessage(error.message);
  }
}

async function copyLink(getState, showMessage) {
  const { setup, t } = getState();
  history.replaceState(null, "", await encodePermalink(setup, t));
  await copyText(location.href, "Link copied.", showMessage);
}

async function copyCode(getState, showMessage) {
  const { setup, t } = getState();
  await copyText(await generatePython(setup, t), "Python code copied.", showMessage);
}

async function copyText(text, message, showMessage) {
  try {
    await navigator.clipboard.writeText(text);
    showMessage(message);
  } catch {
    showMessage("The browser blocked copying; allow this page to use the clipboard.");
  }
}
